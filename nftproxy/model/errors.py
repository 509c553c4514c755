"""The few ways in which nftproxy fails, by what the caller can do.

* `BadInput`: input of a user or a cluster can't be used.  Skip it, report it; a command exits 2.
* `Refused`: the kernel or libnftables refused a transaction.  Nothing of it happened; rebuild from everything.
* `Unavailable`: the kernel side can't be reached at all (no library, no permission).  Retry, or give up.

Callers ask by type, never by text.
"""

from __future__ import annotations

import msgspec

from nftproxy.model.codes import Code


class NftproxyError(Exception):
    """Base of every error that nftproxy raises on purpose; `code` is what a command shows with one that ends it."""

    code = Code.NOT_POSSIBLE


class Problem(msgspec.Struct, frozen=True, order=True):
    """One thing wrong with the input, which cost only the element that it names.

    `source` is a file name or "" for the API, `object` reads "Service shop/web" (or "" for a whole file), `field` is
    a path as in "spec.ports[0].port" (or "" for the object), `message` says what is wrong with it.  `code` is what
    to look up for more; a log has it beside the text, and everything else that is for people shows `coded`.
    """

    source: str
    object: str
    field: str
    message: str
    code: Code

    def __str__(self) -> str:
        return ": ".join(part for part in (self.source, self.object, self.field, self.message) if part)

    @property
    def coded(self) -> str:
        """The text with the code before it."""
        return f"{self.code}: {self}"


class BadInput(NftproxyError):
    """Input that can't be used at all; `problems` lists every fault found, not only the first."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(problem.coded for problem in problems))
        self.problems = problems


class TemplateError(BadInput):
    """A template doesn't parse, fails while rendering, or renders what is no statement: file and line say where."""


class Refused(NftproxyError):
    """The kernel or libnftables refused a transaction; nothing of it happened.

    `statement` is the nft text at fault, "" if that isn't known.
    """

    code = Code.RULES_REFUSED

    def __init__(self, message: str, statement: str = "") -> None:
        super().__init__(f"{message}\n  in: {statement}" if statement else message)
        self.message = message
        self.statement = statement


class Unavailable(NftproxyError):
    """The kernel side can't be reached: no binding, no permission, or its process died."""
