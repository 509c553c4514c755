"""The few kinds of errors of nftproxy, by the caller's remedy.

* `BadInput`: input of a user or a cluster can't be used.  Skip it and report it.  A command exits 2.
* `Refused`: the kernel or libnftables refused a transaction, as a whole.  Rebuild it from everything.
* `Unavailable`: the kernel or the API can't be reached at all (no library, no permission, no answer).  Retry, or give
  up.

Callers ask by type, never by text.
"""

from __future__ import annotations

import msgspec

from nftproxy.model.codes import AnyCode, Code


class NftproxyError(Exception):
    """Base of every error that nftproxy raises on purpose.  A command that it ends shows `code` with it."""

    code: AnyCode = Code.NOT_POSSIBLE


class Problem(msgspec.Struct, frozen=True, order=True):
    """A fault in the input.  It costs only the element that it names."""

    source: str  # a file name, "" for the API
    object: str  # as in "Service shop/web", "" for a whole file
    field: str  # a path as in "spec.ports[0].port", "" for the whole object
    message: str
    code: Code  # a log has it beside the text, and all other output shows `coded`

    def __str__(self) -> str:
        return ": ".join(part for part in (self.source, self.object, self.field, self.message) if part)

    @property
    def coded(self) -> str:
        """The text with the code before it."""
        return f"{self.code}: {self}"


class BadInput(NftproxyError):
    """Input that can't be used at all.  `problems` lists every fault, not only the first."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(problem.coded for problem in problems))
        self.problems = list(problems)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the problems too.  By default only the text is pickled."""
        return type(self), tuple(self.problems), self.__dict__


class TemplateError(BadInput):
    """A template doesn't parse, fails while rendering, or renders an incomplete statement.  File and line say where."""


class Refused(NftproxyError):
    """The kernel or libnftables refused a transaction, and no part of it took effect.

    `statement` is the nft text at fault, "" if unknown.
    """

    code = Code.RULES_REFUSED

    def __init__(self, message: str, statement: str = "") -> None:
        super().__init__(f"{message}\n  in: {statement}" if statement else message)
        self.message = message
        self.statement = statement


class Unavailable(NftproxyError):
    """The kernel or the API can't be reached: no binding, no permission, no answer, or a dead process."""
