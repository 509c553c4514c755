"""Errors of the API: a code, and a Status object.

Codes, reasons, details and causes are those of kube-apiserver (k8s.io/apimachinery/pkg/api/errors, k8s.io/apiserver).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from nftproxy_conformance.apiserver.resources import Target
from nftproxy_conformance.apiserver.validation import Cause

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


class ApiError(Exception):
    """The error of a request.

    Args:
        code: the HTTP status.
        message: for humans.
        reason: for programs, by default the reason for the code.
        details: the Status's details.
        metadata: the Status's metadata, with another continue token for an expired list.
    """

    def __init__(
        self,
        code: int,
        message: str,
        reason: str = "",
        details: dict[str, Any] | None = None,
        metadata: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata or {},
            "status": "Failure",
            "message": message,
            "reason": reason or REASONS.get(code, "Unknown"),
        }
        if details is not None:
            self.status["details"] = details
        self.status["code"] = code

    @property
    def body(self) -> bytes:
        """The Status as JSON."""
        return msgspec.json.encode(self.status) + b"\n"

    @property
    def event(self) -> bytes:
        """The line of the ERROR event with the Status, for a watch."""
        return msgspec.json.encode({"type": "ERROR", "object": self.status}) + b"\n"

    @property
    def retry_after(self) -> int | None:
        """Seconds after which to try again, if the Status says so."""
        seconds: int | None = self.status.get("details", {}).get("retryAfterSeconds")
        return seconds


def success(target: Target, uid: str) -> bytes:
    """The Status that says an object was deleted."""
    details = {"name": target.name, "group": target.resource.group, "kind": target.resource.plural, "uid": uid}
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
    return msgspec.json.encode(status) + b"\n"


def not_found(target: Target) -> ApiError:
    """Return the Status if there is no such object."""
    return ApiError(404, f'{_qualified(target)} "{target.name}" not found', details=_details(target))


def already_exists(target: Target) -> ApiError:
    """Return the Status if an object of this name exists already."""
    message = f'{_qualified(target)} "{target.name}" already exists'
    return ApiError(409, message, "AlreadyExists", _details(target))


def conflict(target: Target) -> ApiError:
    """Return the Status if the object has changed since the writer read it."""
    changed = "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {_qualified(target)} "{target.name}": {changed}'
    return ApiError(409, message, details=_details(target))


def forbidden(target: Target, verb: str, user: str) -> ApiError:
    """Return the Status if no rule allows this user to do this."""
    where = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
    name = f' "{target.name}"' if target.name else ""
    message = (
        f'{_qualified(target)}{name} is forbidden: User "{user}" cannot {verb} resource "{target.rbac_resource}" '
        f'in API group "{target.resource.group}" {where}'
    )
    return ApiError(403, message, details=_details(target))


def is_terminating(target: Target) -> ApiError:
    """Return the Status if the namespace is being deleted, and takes nothing new."""
    message = f"unable to create new content in namespace {target.namespace} because it is being terminated"
    cause = {"reason": "NamespaceTerminating", "message": message, "field": "metadata.namespace"}
    return ApiError(403, message, details=_details(target) | {"causes": [cause]})


def forbidden_path(path: str, user: str) -> ApiError:
    """Return the Status if no rule allows this user to read this path."""
    return ApiError(403, f'forbidden: User "{user}" cannot get path "{path}"', details={})


def unknown_resource() -> ApiError:
    """Return the Status if the group is known, and this resource or version of it isn't."""
    return ApiError(404, "the server could not find the requested resource", details={})


def invalid_object(target: Target, name: str, causes: Iterable[Cause]) -> ApiError:
    """Return the Status of an object that validation refuses, with the cause of each fault."""
    kind = target.resource.kind
    # Events are validated as those of the core group
    group = {"group": target.resource.group} if target.resource.group and kind != "Event" else {}
    return _invalid(kind, name, {"name": name, **group, "kind": kind}, causes)


def invalid_options(causes: Iterable[Cause]) -> ApiError:
    """Return the Status for a query whose options contradict each other."""
    kind, group = "ListOptions", "meta.k8s.io"
    return _invalid(f"{kind}.{group}", "", {"group": group, "kind": kind}, causes)


def _invalid(kind: str, name: str, details: dict[str, Any], causes: Iterable[Cause]) -> ApiError:
    listed = [{"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes]
    message = f'{kind} "{name}" is invalid: {", ".join(f"{cause.field}: {cause.message}" for cause in causes)}'
    return ApiError(422, message, details=details | {"causes": listed})


def unreadable_version(text: str, *, is_checked: bool) -> ApiError:
    """A resourceVersion that is no number: a bad request if it is checked first, else an error without a reason."""
    message = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
    if is_checked:
        return ApiError(400, f"invalid resource version: {message}")
    error = ApiError(500, message)
    del error.status["reason"]
    return error


def expired(revision: int, floor: int) -> ApiError:
    """Return the Status of a watch from a version that is no longer kept."""
    return ApiError(410, f"too old resource version: {revision} ({floor})")


def too_large(revision: int, current: int) -> ApiError:
    """Return the Status of a list from a version that is yet to come."""
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    message = f"Timeout: Too large resource version: {revision}, current: {current}"
    return ApiError(504, message, details={"causes": causes, "retryAfterSeconds": 1})


def _qualified(target: Target) -> str:
    group = target.resource.group
    return f"{target.resource.plural}.{group}" if group else target.resource.plural


def _details(target: Target) -> dict[str, Any]:
    given = {"name": target.name, "group": target.resource.group, "kind": target.resource.plural}
    return {key: value for key, value in given.items() if value}
