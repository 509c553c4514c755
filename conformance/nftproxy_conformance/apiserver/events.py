"""Events (events.k8s.io/v1) over HTTP: defaults and validation.

Rules and names of fields are those of pkg/apis/core/validation/events.go, which uses the names of the core group.  So
the cause for a `note` that is too long names the field `message`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nftproxy_conformance.apiserver.resources import Object
from nftproxy_conformance.apiserver.status import ApiError
from nftproxy_conformance.apiserver.validation import Cause, invalid, qualified_name, required, subdomain

LONGEST = {"reportingInstance": 128, "action": 128, "reason": 128}
LONGEST_NOTE = 1024
SYSTEM_NAMESPACES = {"default", "kube-system"}
"""Where Events of objects without a namespace may be."""
FIXED = {
    "regarding": "involvedObject",
    "reason": "reason",
    "note": "message",
    "type": "type",
    "eventTime": "eventTime",
    "action": "action",
    "related": "related",
    "reportingController": "reportingController",
    "reportingInstance": "reportingInstance",
}
"""Fields that no update may change, with the names that causes have for them."""
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")


def complete(document: Object) -> None:
    """Fill in the fields that every Event has.

    Raises:
        ApiError: 400, a time can't be parsed.  Microseconds are required.
    """
    for time in (document.get("eventTime"), (document.get("series") or {}).get("lastObservedTime")):
        if time is not None and not (isinstance(time, str) and _MICRO_TIME.fullmatch(time)):
            raise ApiError(400, f"Event in version v1 cannot be handled as a Event: parsing time {time!r}")
    document.setdefault("eventTime", None)
    document.setdefault("regarding", {})
    document |= {"deprecatedSource": {}, "deprecatedFirstTimestamp": None, "deprecatedLastTimestamp": None}


def causes(document: Object, old: Object | None) -> Iterator[Cause]:
    """Yield why an Event is denied."""
    yield from _always(document)
    if old is None:
        yield from _new(document)
        return
    if document.get("series") != old.get("series"):
        yield from _series(document)
    for field, path in FIXED.items():
        if document.get(field) != old.get(field):
            yield invalid(path, document.get(field), "field is immutable")


def _always(document: Object) -> Iterator[Cause]:
    namespace, about = document["metadata"]["namespace"], document["regarding"].get("namespace", "")
    if document["eventTime"] is None:
        if namespace != (about or "default"):
            yield invalid("involvedObject.namespace", about, "does not match event.namespace")
        return
    if not about and namespace not in SYSTEM_NAMESPACES:
        yield invalid("involvedObject.namespace", about, "does not match event.namespace")
    controller = document.get("reportingController") or ""
    if not controller:
        yield required("reportingController")
    yield from qualified_name("reportingController", controller)
    for field, longest in LONGEST.items():
        if not document.get(field):
            yield required(field)
        elif len(document[field].encode()) > longest:
            yield invalid(field, "", f"can have at most {longest} characters")
    if len((document.get("note") or "").encode()) > LONGEST_NOTE:
        yield invalid("message", "", f"can have at most {LONGEST_NOTE} characters")


def _new(document: Object) -> Iterator[Cause]:
    metadata = document["metadata"]
    if metadata.get("generateName"):  # may end in a dash, as letters follow
        yield from subdomain("metadata.generateName", re.sub("-$", "a", metadata["generateName"]))
    else:
        yield from subdomain("metadata.name", metadata["name"])
    yield from _series(document)
    if document["eventTime"] is None:
        yield required("eventTime")
    if document.get("type") not in {"Normal", "Warning"}:
        yield invalid("type", "", f"has invalid value: {document.get('type')}")


def _series(document: Object) -> Iterator[Cause]:
    series = document.get("series")
    if series is None:
        return
    if series.get("count", 0) < 2:
        yield invalid("series.count", "", "should be at least 2")
    if series.get("lastObservedTime") is None:
        yield required("series.lastObservedTime")
