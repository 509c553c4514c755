"""The answers of an API server, taken apart: pages of lists, lines of watches, and errors.

Only the envelope is read here.  Objects stay JSON text, for parse.py to read.  Nothing must be mistaken for an empty
list: neither a page of HTML with status 200, nor a Status where a list should be, nor half a list.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from nftproxy.api.decode import show
from nftproxy.api.kinds import ObjectKind
from nftproxy.model.errors import NftproxyError

LARGEST_OBJECT = 16 * 2**20
"""Bytes of an object's JSON in a list, and of a line of a watch.

etcd's requests are limited to 1.5 MiB and kube-apiserver's to 3 MiB, and Go writes some characters as six bytes.  There
is no bound on the bytes of a list: a tenant may fill etcd, and only a single object is in memory at a time."""

LONGEST_RETRY_AFTER = 120.0
"""Seconds: kube-apiserver says 1 to some 30.  A server that asks for hours must not leave a node without rules for
hours."""

ENOUGH = 2**18
"""Bytes of a list from which items are taken out: some 70 EndpointSlices of 10 endpoints, which take 2 ms to parse, or
700 small Services, which take 7 ms."""

_SHOWN = 300
"""Characters of a server's message that are shown."""

_FIRST_ITEM = re.compile(rb'"items":\s*\[(\s*)(\{\s*"\w+"\s*:)')
"""The blanks before the first item, and its beginning.  All items of kube-apiserver begin with `{"metadata":`."""

_LAST_END = re.compile(rb"\}(\s*\]\s*\}\s*)\Z")
"""The end of the last item, and the end of the list."""

_NAMES = re.compile(rb'"metadata"\s*:\s*\{((?:\s*"(?:name|generateName|namespace)"\s*:\s*"[^"\\]*"\s*,)+)')
"""The names of an object at its beginning.  They are the first fields of ObjectMeta, before labels and annotations."""

_BEGINNING = 2**12
"""Bytes at the beginning of an object that is left out, which have its names."""

_VERSION = re.compile(r"0|[1-9][0-9]{0,127}", re.ASCII)
"""Versions that can be compared: etcd's revisions have 64 bits, and the API's helper takes any length."""


class Unreadable(NftproxyError):
    """The answer is not in the API's form: retry."""


class Page(NamedTuple):
    """A page of a list.  `version` is the list's resourceVersion, and `continue_token` is "" on the last page."""

    version: str
    continue_token: str
    items: list[msgspec.Raw]


class _ListMeta(msgspec.Struct):
    version: str = msgspec.field(name="resourceVersion")
    continue_token: str | None = msgspec.field(name="continue", default=None)


class _ListBody(msgspec.Struct):
    kind: str
    metadata: _ListMeta
    items: list[msgspec.Raw] | None


_LIST = msgspec.json.Decoder(_ListBody)
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_MISFITS = (msgspec.DecodeError, UnicodeError, RecursionError)
"""The exceptions of msgspec for bytes that are no JSON, or not of the type."""


class PageReader:
    """A page of a list, whose items are taken out while its bytes come, so that it is never in memory as a whole.

    A list is cut at the last comma before an item that begins as the first item does.  Within a Service or an
    EndpointSlice no object that follows a comma begins so: `metadata` as the key of a label follows a brace.  Otherwise
    the text before the cut would be no sequence of items, and the reader would wait for as many bytes again.

    An item of more than `LARGEST_OBJECT` bytes is left out: the reader drops its bytes up to the next item.
    """

    def __init__(self, kind: ObjectKind) -> None:
        """Begin a page of a list of this kind."""
        self._kind = kind
        self._head = b""  # all before the first item, if it is a list's
        self._border = b""  # between two items: a comma, blanks, and the beginning of an item
        self._rest = bytearray()  # the bytes that follow the items taken out
        self._enough = ENOUGH
        self._left_out = list[bytes]()  # the beginnings of items that are too large
        self._is_skipping = False  # whether the rest belongs to such an item

    def take(self, data: bytes) -> list[msgspec.Raw]:
        """Add bytes, and return items that are complete now.

        Raises:
            Unreadable: it is no list of this kind, or items can't be separated.
        """
        self._rest += data
        if self._is_skipping:
            self._skip()
        if self._is_skipping or len(self._rest) < self._enough:
            return []
        if not self._border:
            self._read_head()
        items = self._cut()
        if not items and len(self._rest) > LARGEST_OBJECT:
            self._leave_out()
        self._enough = ENOUGH if items or self._is_skipping else min(2 * len(self._rest), LARGEST_OBJECT + 1)
        return items

    def pop_left_out(self) -> list[bytes]:
        """Return the names of the items that were left out since the last call, as JSON objects with metadata alone."""
        found, self._left_out = self._left_out, []
        return [_names_in(beginning) for beginning in found]

    def _leave_out(self) -> None:
        """Begin to skip the item at the beginning of the rest, which is too large."""
        if not self._border or self._border in self._rest:
            raise Unreadable(f"a {self._kind.name}List whose items can't be separated in {LARGEST_OBJECT} bytes")
        self._left_out.append(bytes(self._rest[:_BEGINNING]))
        self._skip()

    def _skip(self) -> None:
        """Drop the rest up to the next item, and keep as much as may be the beginning of a border or the list's end."""
        end = self._rest.find(self._border)
        self._is_skipping = end < 0
        del self._rest[: -_BEGINNING if end < 0 else end + 1]

    def end(self) -> Page:
        """Return the page, with the items that have not been taken.

        Raises:
            Unreadable: it is no list of this kind, or not all of it.
        """
        body, self._rest = self._rest, bytearray()
        if self._is_skipping:
            last = _LAST_END.search(body)
            body = bytearray(last[1] if last else b"")
        try:
            found = _LIST.decode(self._head + body)
        except _MISFITS as error:
            raise Unreadable(f"a {self._kind.name}List that can't be read: {error}") from error
        return self._page(found)

    def _read_head(self) -> None:
        """Find the first item.  If the kind or the version comes after it, the list is not cut."""
        if first := _FIRST_ITEM.search(self._rest):
            head = bytes(self._rest[: first.start(1)])
            try:
                found = _LIST.decode(head + b"]}")
            except _MISFITS:
                return
            self._page(found)
            self._head, self._border = head, b"," + first[1] + first[2]
            del self._rest[: len(head)]

    def _cut(self) -> list[msgspec.Raw]:
        end = self._rest.rfind(self._border) if self._border else -1
        if end < 0:
            return []
        with memoryview(self._rest) as rest:
            text = b"".join((b"[", rest[:end], b"]"))
        try:
            items = _ITEMS.decode(text)
        except _MISFITS:
            return []
        del self._rest[: end + 1]
        return items

    def _page(self, found: _ListBody) -> Page:
        if found.kind != f"{self._kind.name}List" or not found.metadata.version:
            raise Unreadable(f"{show(found.kind)} where a {self._kind.name}List with a resourceVersion should be")
        return Page(found.metadata.version, found.metadata.continue_token or "", found.items or [])


def _names_in(beginning: bytes) -> bytes:
    """Return the names of an object, from the beginning of its JSON text, as the JSON of an object with them alone."""
    found = _NAMES.search(beginning)
    return b'{"metadata":{%s}}' % (found[1].rstrip(b", \t\r\n") if found else b"")


def is_behind(version: str, known: str) -> bool:
    """Whether a resourceVersion is older than another version of the same resource.

    kube-apiserver's versions are decimal numbers (KEP-5504, Kubernetes 1.35).  Other versions can't be compared.
    """
    return (
        _VERSION.fullmatch(version) is not None
        and _VERSION.fullmatch(known) is not None
        and ((len(version), version) < (len(known), known))
    )


class Lines:
    """The lines of a stream of bytes.

    Only newlines end lines.  To `str.splitlines` U+2028 ends a line too, and JSON may have that within a string.
    """

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def is_cut(self) -> bool:
        """Whether the last line has no end yet."""
        return bool(self._rest.strip())

    def split(self, data: bytes) -> list[bytes]:
        """Add bytes, and return the lines that are complete now.  The cost is in proportion to the bytes.

        Raises:
            Unreadable: a line is too long.
        """
        first, *others = data.split(b"\n")
        self._rest += first
        if len(self._rest) > LARGEST_OBJECT:
            raise Unreadable(f"a line of more than {LARGEST_OBJECT} bytes")
        if not others:
            return []
        whole = [bytes(self._rest), *others[:-1]]
        self._rest = bytearray(others[-1])
        return [line for line in whole if line.strip()]


class WatchEvent(NamedTuple):
    """A line of a watch: an event's type, its object, and that object's resourceVersion ("" without it)."""

    type: str
    object: msgspec.Raw
    version: str


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Version(msgspec.Struct):
    version: str = msgspec.field(name="resourceVersion", default="")


class _Versioned(msgspec.Struct):
    metadata: _Version | None = None


_LINES = msgspec.json.Decoder(_Line)
_VERSIONS = msgspec.json.Decoder(_Versioned)


def read_change(line: bytes) -> WatchEvent:
    """Parse a line of a watch.

    Raises:
        Unreadable: it is no event, or not all of it.
    """
    try:
        found = _LINES.decode(line)
    except _MISFITS as error:
        raise Unreadable(f"a line of a watch that can't be read: {error}") from error
    return WatchEvent(found.type, found.object, _version(found.object))


def _version(raw: msgspec.Raw) -> str:
    try:
        metadata = _VERSIONS.decode(raw).metadata
    except _MISFITS:
        return ""
    return metadata.version if metadata else ""


class ErrorStatus(NamedTuple):
    """An error: an answer with a status other than 200, or an ERROR in a watch."""

    code: int  # the HTTP status, 0 if unknown
    message: str
    retry_after: float = 0.0  # seconds to wait, 0 if the server didn't say
    is_too_large: bool = False  # the server hasn't reached the resourceVersion of the request


class _Cause(msgspec.Struct):
    reason: str = ""


class _Details(msgspec.Struct):
    retry_after: int = msgspec.field(name="retryAfterSeconds", default=0)
    causes: list[_Cause] | None = None


class _StatusBody(msgspec.Struct):
    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


_CODES = {"Expired": 410, "Gone": 410, "TooManyRequests": 429, "Unauthorized": 401, "Forbidden": 403, "Timeout": 504}
"""Codes of reasons, for a Status without a code (meta/v1 StatusReason)."""


def read_error(body: bytes | msgspec.Raw, code: int = 0, retry_after: str = "") -> ErrorStatus:
    """Parse the answer to a request that failed, with any body.

    Args:
        body: a Status, or any text.
        code: the HTTP status.  Without it, the code in the Status counts.
        retry_after: the header of that name, or "".  Only seconds are understood, as Kubernetes' servers send no dates.
    """
    try:
        status = msgspec.json.decode(body, type=_StatusBody)
    except _MISFITS:
        status = _StatusBody(message=bytes(body)[:_SHOWN].decode(errors="replace"))
    details = status.details or _Details()
    code = code or status.code or _CODES.get(status.reason, 0)
    seconds = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else details.retry_after
    return ErrorStatus(
        code=code,
        message=f"{code} {status.reason}: {status.message[:_SHOWN]!r}",
        retry_after=min(max(seconds, 0.0), LONGEST_RETRY_AFTER),
        is_too_large=any(cause.reason == "ResourceVersionTooLarge" for cause in details.causes or ()),
    )
