"""The options of lists and watches in a query, checked as kube-apiserver checks them (ValidateListOptions)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nftproxy_conformance.apiserver import versions
from nftproxy_conformance.apiserver.resources import Target
from nftproxy_conformance.apiserver.selectors import Selection, parse_fields, parse_labels
from nftproxy_conformance.apiserver.status import ApiError, invalid_options, unreadable_version
from nftproxy_conformance.apiserver.validation import Cause, forbidden, word

_YES = {"1", "true", "True"}
_MATCH, _INITIAL = "resourceVersionMatch", "sendInitialEvents"


class Options(NamedTuple):
    """The options of a query.  A missing number is None, a missing text ""."""

    selection: Selection
    is_watch: bool
    resource_version: int | None
    match: str
    limit: int
    continue_token: str
    wants_bookmarks: bool
    timeout: int | None
    send_initial_events: bool | None


def is_watch(query: Mapping[str, str]) -> bool:
    """Whether the query makes a watch of a list."""
    return query.get("watch") in _YES


def parse_options(target: Target, query: Mapping[str, str], version: str) -> Options:
    """The options of a list or a watch, as a server of this Kubernetes version reads them.

    Raises:
        ApiError: 400 or 422, they can't be parsed, or contradict each other.
    """
    send_initial = query.get(_INITIAL)
    asked = query.get("resourceVersion", "")
    if asked and not _is_number(asked):
        is_checked = versions.has(version, versions.Feature.LISTS_CHECK_VERSIONS) and not is_watch(query)
        raise unreadable_version(asked, is_checked=is_checked)
    options = Options(
        selection=Selection(
            target.namespace,
            parse_labels(query.get("labelSelector", "")),
            parse_fields(query.get("fieldSelector", ""), versions.selectable_fields(target.resource, version)),
        ),
        is_watch=is_watch(query),
        resource_version=_number(query, "resourceVersion"),
        match=query.get(_MATCH, ""),
        limit=_number(query, "limit") or 0,
        continue_token=query.get("continue", ""),
        wants_bookmarks=query.get("allowWatchBookmarks") in _YES,
        timeout=_number(query, "timeoutSeconds"),
        send_initial_events=send_initial in _YES if send_initial else None,
    )
    if options.is_watch and not options.resource_version and send_initial is None and not options.match:
        # A watch from anywhere begins with the present objects (internalversion, SetListOptionsDefaults, since 1.32)
        return options._replace(send_initial_events=True)
    causes = list(_watch_causes(options, version) if options.is_watch else _list_causes(options))
    if causes:
        raise invalid_options(causes)
    return options


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not _is_number(text):
        raise ApiError(400, f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax')
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _list_causes(options: Options) -> Iterator[Cause]:
    if options.match:
        if options.resource_version is None:
            yield forbidden(_MATCH, "resourceVersionMatch is forbidden unless resourceVersion is provided")
        if options.continue_token:
            yield forbidden(_MATCH, "resourceVersionMatch is forbidden when continue is provided")
        yield from word(_MATCH, options.match, ("Exact", "NotOlderThan"))
        if options.match == "Exact" and options.resource_version == 0:
            yield forbidden(_MATCH, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
    if options.send_initial_events is not None:
        yield forbidden(_INITIAL, "sendInitialEvents is forbidden for list")


def _watch_causes(options: Options, version: str) -> Iterator[Cause]:
    has_list = options.send_initial_events is not None
    if has_list and options.match != "NotOlderThan":
        yield forbidden(_MATCH, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
    if has_list and not versions.has(version, versions.Feature.WATCH_LIST):
        why = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
        yield forbidden(_INITIAL, why)
    if options.match:
        if not has_list:
            yield forbidden(_MATCH, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
        yield from word(_MATCH, options.match, ("NotOlderThan",))
