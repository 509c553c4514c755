"""Lists: one state of a resource, whole or in pages that agree with each other.

A continue token names the revision of the first page and where the next one starts, as on real servers; the server
itself remembers nothing about it, so that the token outlives a restart, and expires when that revision is compacted.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from nftproxy.lab.apiserver.options import Options
from nftproxy.lab.apiserver.resources import Target
from nftproxy.lab.apiserver.selectors import Selection
from nftproxy.lab.apiserver.status import CONTINUE_EXPIRED, ApiError, too_large
from nftproxy.lab.apiserver.store import Key, Store, Stored, TooOldError

LATEST = -1
"""The revision in the token of a list that goes on after it has expired: whatever there is by then."""


class _Token(NamedTuple):
    revision: int
    after: Key

    def encoded(self, scope: str) -> str:
        """As text; where the next page starts is named below the namespace that is listed, "" for all."""
        start = self.after[1:] if scope else self.after
        content = {"v": "meta.k8s.io/v1", "rv": self.revision, "start": f"/{'/'.join(start)}\0"}
        return base64.urlsafe_b64encode(msgspec.json.encode(content)).decode().rstrip("=")

    @classmethod
    def decoded(cls, text: str, scope: str) -> _Token:
        try:
            content = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            start = content["start"].removesuffix("\0").removeprefix("/")
            namespace, _, name = start.partition("/") if not scope else (scope, "/", start)
            return cls(int(content["rv"]), (namespace, name))
        except (binascii.Error, msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
            raise ApiError(400, f"continue key is not valid: {error}") from error


def list_body(store: Store, target: Target, options: Options, stale: int | None = None) -> bytes:
    """The JSON of a list.

    Args:
        store: where the objects are.
        target: which of them.
        options: what the request asks for.
        stale: the revision of a server that lags behind; it answers with its own state, whatever is asked for.

    Raises:
        ApiError: 400, 410 or 504, as the API says.
    """
    resource, scope = target.resource, target.namespace
    token = _Token.decoded(options.continue_token, scope) if options.continue_token else None
    revision = _revision(store, options, token) if stale is None else stale
    try:
        state = store.at(resource, revision)
    except TooOldError as error:
        raise _expired(token, scope) from error
    rest: Sequence[Stored] = (
        state[bisect_right(state, token.after, key=lambda stored: stored.key) :] if token else state
    )
    everything = Selection()
    chosen = rest if options.selection == everything else [stored for stored in rest if stored.is_in(options.selection)]
    # A list from the watch cache is always whole
    limit = 0 if options.resource_version == 0 and not token else options.limit
    page = chosen[:limit] if limit else chosen
    metadata: dict[str, str | int] = {"resourceVersion": str(revision)}
    if len(page) < len(chosen):
        metadata["continue"] = _Token(revision, page[-1].key).encoded(scope)
        if not options.selection.has_selector:
            metadata["remainingItemCount"] = len(chosen) - len(page)
    opening = f'{{"kind":"{resource.kind}List","apiVersion":"{resource.api_version}","metadata":'.encode()
    items = b",".join(stored.item for stored in page)
    return b"".join((opening, msgspec.json.encode(metadata), b',"items":[', items, b"]}\n"))


def _revision(store: Store, options: Options, token: _Token | None) -> int:
    """The revision whose state is the answer."""
    asked = options.resource_version or 0
    if token is not None:
        if asked:
            raise ApiError(400, "specifying resource version is not allowed when using continue")
        return store.revision if token.revision == LATEST else token.revision
    if asked > store.revision:
        raise too_large(asked, store.revision)
    # Without a word, a limit means this very version: a page must be from where it can be continued
    is_exact = options.match == "Exact" or (not options.match and options.limit and asked)
    return asked if is_exact else store.revision


def _expired(token: _Token | None, scope: str) -> ApiError:
    if token is None:
        return ApiError(410, "The resourceVersion for the provided list is too old.")
    return ApiError(410, CONTINUE_EXPIRED, metadata={"continue": _Token(LATEST, token.after).encoded(scope)})
