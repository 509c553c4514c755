"""What an API server answers, taken apart: pages of lists, lines of watches, and errors.

Only the wrapping is looked at here; objects stay the JSON text that they are, for parse.py to read.  What matters is
that nothing is taken for what it isn't: a page of HTML with status 200, a Status where a list should be, or half a
list must never pass for a list without objects.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from nftproxy.api.decode import show
from nftproxy.api.kinds import Kind
from nftproxy.model.errors import NftproxyError

LONGEST_LINE = 16 * 2**20
"""Bytes in a line of a watch: etcd's requests are limited to 1.5 MiB, kube-apiserver's own to 3 MiB."""

LONGEST_RETRY_AFTER = 120.0
"""Seconds: kube-apiserver says 1 to some 30; one who asks for hours must not leave a node without rules for hours."""

_SHOWN = 300
"""Characters of a server's message that are shown."""


_VERSION = re.compile(r"0|[1-9][0-9]{0,127}", re.ASCII)
"""What can be compared; etcd's own revisions have 64 bits, and the API's helper takes any length."""


class Unreadable(NftproxyError):
    """What came is not what the API says should come: ask again."""


class Page(NamedTuple):
    """One page of a list; `continue_token` is "" if it is the last, `version` the list's resourceVersion."""

    version: str
    continue_token: str
    items: list[msgspec.Raw]


class _ListMeta(msgspec.Struct):
    version: str = msgspec.field(name="resourceVersion")
    continue_token: str | None = msgspec.field(name="continue", default=None)


class _List(msgspec.Struct):
    kind: str
    metadata: _ListMeta
    items: list[msgspec.Raw] | None


def read_page(body: bytes | bytearray, kind: Kind) -> Page:
    """The page of a list of a kind; its items are views of `body`.

    Raises:
        Unreadable: it is no such list, or not all of it.
    """
    try:
        found = msgspec.json.decode(body, type=_List)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Unreadable(f"a {kind.name}List that can't be read: {error}") from error
    if found.kind != f"{kind.name}List" or not found.metadata.version:
        raise Unreadable(f"{show(found.kind)} where a {kind.name}List with a resourceVersion should be")
    return Page(found.metadata.version, found.metadata.continue_token or "", found.items or [])


def is_behind(version: str, known: str) -> bool:
    """Whether a resourceVersion is older than another one of the same resource.

    Those of kube-apiserver are decimal numbers (KEP-5504, Kubernetes 1.35); what isn't can't be compared.
    """
    return (
        _VERSION.fullmatch(version) is not None
        and _VERSION.fullmatch(known) is not None
        and ((len(version), version) < (len(known), known))
    )


class Lines:
    """The lines of a stream, from its bytes as they come.

    Newlines only: to `str.splitlines` U+2028 ends a line too, and JSON may have that within a text.
    """

    def __init__(self) -> None:
        self._rest = b""

    @property
    def is_cut(self) -> bool:
        """Whether the last line has no end yet."""
        return bool(self._rest.strip())

    def split(self, data: bytes) -> list[bytes]:
        """The lines that are complete now.

        Raises:
            Unreadable: there is no end to one.
        """
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            raise Unreadable(f"a line of more than {LONGEST_LINE} bytes")
        return [line for line in whole if line.strip()]


class Change(NamedTuple):
    """One line of a watch: an event's type, its object, and that object's resourceVersion ("" if it has none)."""

    type: str
    object: msgspec.Raw
    version: str


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Meta(msgspec.Struct):
    version: str = msgspec.field(name="resourceVersion", default="")


class _Versioned(msgspec.Struct):
    metadata: _Meta | None = None


_LINES = msgspec.json.Decoder(_Line)
_VERSIONS = msgspec.json.Decoder(_Versioned)


def read_change(line: bytes) -> Change:
    """What a line of a watch says.

    Raises:
        Unreadable: it is no event, or not all of it.
    """
    try:
        found = _LINES.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Unreadable(f"a line of a watch that can't be read: {error}") from error
    return Change(found.type, found.object, _version(found.object))


def _version(raw: msgspec.Raw) -> str:
    try:
        metadata = _VERSIONS.decode(raw).metadata
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""
    return metadata.version if metadata else ""


class ErrorStatus(NamedTuple):
    """An answer that isn't what was asked for: of status 400 and more, or an ERROR in a watch.

    `code` is the HTTP status, 0 if it isn't known.  `retry_after` are seconds to wait, 0 if nothing was said.
    `is_too_large` says that the server doesn't have the asked resourceVersion yet.
    """

    code: int
    message: str
    retry_after: float = 0.0
    is_too_large: bool = False


class _Cause(msgspec.Struct):
    reason: str = ""


class _Details(msgspec.Struct):
    retry_after: int = msgspec.field(name="retryAfterSeconds", default=0)
    causes: list[_Cause] | None = None


class _Status(msgspec.Struct):
    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


_CODES = {"Expired": 410, "Gone": 410, "TooManyRequests": 429, "Unauthorized": 401, "Forbidden": 403, "Timeout": 504}
"""Codes of the reasons that matter, for a Status without a code (meta/v1 StatusReason)."""


def read_error(body: bytes | msgspec.Raw, code: int = 0, retry_after: str = "") -> ErrorStatus:
    """What an error answer says, whatever its body is.

    Args:
        body: a Status, or any text.
        code: the HTTP status; without it that in the Status.
        retry_after: the header of that name, "" if there is none; only seconds are understood, as no server of
            Kubernetes sends a date.
    """
    try:
        status = msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        status = _Status(message=bytes(body)[:_SHOWN].decode(errors="replace"))
    details = status.details or _Details()
    code = code or status.code or _CODES.get(status.reason, 0)
    seconds = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else details.retry_after
    return ErrorStatus(
        code=code,
        message=f"{code} {status.reason}: {status.message[:_SHOWN]!r}",
        retry_after=min(max(seconds, 0.0), LONGEST_RETRY_AFTER),
        is_too_large=any(cause.reason == "ResourceVersionTooLarge" for cause in details.causes or ()),
    )
