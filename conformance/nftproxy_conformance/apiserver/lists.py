"""Lists: a state of a resource, whole or in consistent pages.

A continue token has the revision of the first page and the start of the next page, as on real servers.  The server
keeps no state for it.  So the token survives a restart, and expires when that revision is compacted.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from nftproxy_conformance.apiserver.options import Options
from nftproxy_conformance.apiserver.resources import Target
from nftproxy_conformance.apiserver.selectors import Selection
from nftproxy_conformance.apiserver.status import CONTINUE_EXPIRED, ApiError, too_large
from nftproxy_conformance.apiserver.store import Key, Store, Stored, TooOldError

LATEST = -1
"""The revision in the token of a list that goes on after it has expired: the newest state."""


class _Token(NamedTuple):
    revision: int
    after: Key

    def encoded(self, scope: str) -> str:
        """The token as text.  The start of the next page is relative to the listed namespace, "" for all."""
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
        store: the objects.
        target: the resource and namespace.
        options: the options of the query.
        stale: the revision of a server that lags behind, which answers with that state in any case.

    Raises:
        ApiError: 400, 410 or 504, as in the API.
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
    """The revision of the listed state."""
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
