"""The permissions that the agent needs, and how to look them up: SelfSubjectAccessReview (authorization.k8s.io/v1).

Every authenticated user may create such a review (the ClusterRole system:basic-user).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from nftproxy.api.decode import show

GROUP = "authorization.k8s.io"
KIND = "SelfSubjectAccessReview"


class Permission(msgspec.Struct, frozen=True):
    """A verb on all objects of a resource, in an API group ("" for core)."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


PERMISSIONS = (
    Permission("", "services", "list"),
    Permission("", "services", "watch"),
    Permission("discovery.k8s.io", "endpointslices", "list"),
    Permission("discovery.k8s.io", "endpointslices", "watch"),
    Permission("networking.k8s.io", "servicecidrs", "list"),
    Permission("networking.k8s.io", "servicecidrs", "watch"),
    Permission("", "nodes", "list"),
    Permission("", "nodes", "watch"),
    Permission("events.k8s.io", "events", "create"),
    Permission("events.k8s.io", "events", "patch"),
)
"""The lists and watches of resources.py, and the Events of agent/reporting/event_recorder.py."""

TAINT_PERMISSIONS = (Permission("", "nodes", "get"), Permission("", "nodes", "patch"))
"""The additional permissions for `nftproxy.startupTaint`."""


class AccessReview(msgspec.Struct, frozen=True):
    """Whether a permission is given, and the API's reason, which may be "".

    An authorizer that fails, such as a webhook that can't be reached, has no opinion.  Then the permission is missing.
    """

    is_allowed: bool
    reason: str = ""


class _ReviewStatus(msgspec.Struct):
    allowed: bool
    reason: str | None = None
    evaluation_error: str | None = msgspec.field(default=None, name="evaluationError")


class _Review(msgspec.Struct):
    status: _ReviewStatus


def review(right: Permission) -> dict[str, Any]:
    """Return the object to create.  The API answers with the same object and a status."""
    attributes = {"group": right.group, "resource": right.resource, "verb": right.verb}
    spec = {"resourceAttributes": attributes}
    return {"apiVersion": f"{GROUP}/v1", "kind": KIND, "spec": spec}


def read_review(answer: Mapping[str, Any]) -> AccessReview:
    """Parse the API's answer.

    Raises:
        ValueError: the answer is no review.
    """
    status = msgspec.convert(answer, _Review).status
    says = status.reason or status.evaluation_error
    return AccessReview(status.allowed, show(says)[1:-1] if says else "")
