"""What the agent asks of the API, and how to ask whether it may: SelfSubjectAccessReview (authorization.k8s.io/v1).

Everyone who is known to the API may ask that of himself (the ClusterRole system:basic-user).
"""

from __future__ import annotations

import msgspec

from nftproxy.api.decode import show

GROUP = "authorization.k8s.io"
PLURAL = "selfsubjectaccessreviews"
KIND = "SelfSubjectAccessReview"


class Right(msgspec.Struct, frozen=True):
    """One thing that may be allowed: a verb on all objects of a resource, in a group ("" for core)."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


RIGHTS = (
    Right("", "services", "list"),
    Right("", "services", "watch"),
    Right("discovery.k8s.io", "endpointslices", "list"),
    Right("discovery.k8s.io", "endpointslices", "watch"),
    Right("networking.k8s.io", "servicecidrs", "list"),
    Right("networking.k8s.io", "servicecidrs", "watch"),
    Right("", "nodes", "list"),
    Right("", "nodes", "watch"),
    Right("events.k8s.io", "events", "create"),
    Right("events.k8s.io", "events", "patch"),
)
"""All that the agent asks for: the lists and watches of resources.py, and the Events of agent/recorder.py."""

TAINT_RIGHTS = (Right("", "nodes", "get"), Right("", "nodes", "patch"))
"""What it asks for beside these with `nftproxy.startupTaint`."""


class Verdict(msgspec.Struct, frozen=True):
    """Whether something is allowed, and what the API says about it, which may be nothing.

    An authorizer that fails, such as a webhook that can't be reached, has no opinion, and so nothing may be allowed.
    """

    is_allowed: bool
    reason: str = ""


class _Status(msgspec.Struct):
    allowed: bool
    reason: str | None = None
    evaluation_error: str | None = msgspec.field(default=None, name="evaluationError")


class _Review(msgspec.Struct):
    status: _Status


def review(right: Right) -> bytes:
    """The object to create: the API answers with the same, and a status."""
    attributes = {"group": right.group, "resource": right.resource, "verb": right.verb}
    spec = {"resourceAttributes": attributes}
    return msgspec.json.encode({"apiVersion": f"{GROUP}/v1", "kind": KIND, "spec": spec})


def verdict(answer: bytes) -> Verdict:
    """What the API has answered.

    Raises:
        ValueError: it is no review.
    """
    status = msgspec.json.decode(answer, type=_Review).status
    says = status.reason or status.evaluation_error
    return Verdict(status.allowed, show(says)[1:-1] if says else "")
