"""SelfSubjectAccessReview (authorization.k8s.io/v1): a client asks what it may do, and nothing is stored.

Whoever the server knows may ask (the ClusterRole system:basic-user), and nobody else.  With RBAC a denial has no
reason: rules only allow.  What is refused, and how a reason reads, is as in kube-apiserver (pkg/apis/authorization,
validation.go; pkg/registry/rbac/validation, rule.go); other authorizers may add `denied` and `evaluationError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from nftproxy.lab.apiserver.access import NOBODY, Access
from nftproxy.lab.apiserver.resources import Resource, Target
from nftproxy.lab.apiserver.status import forbidden, invalid_object
from nftproxy.lab.apiserver.validation import Cause, invalid
from nftproxy.lab.apiserver.writes import decoded

GROUP, PLURAL = "authorization.k8s.io", "selfsubjectaccessreviews"
PATH = f"/apis/{GROUP}/v1/{PLURAL}"
TARGET = Target(Resource(GROUP, PLURAL, "SelfSubjectAccessReview", namespaced=False))


BINDING = 'ClusterRoleBinding "nftproxy" of ClusterRole "nftproxy" to ServiceAccount "nftproxy/kube-system"'
"""What allows all that is allowed, as a reason names it."""


def check_may_ask(access: Access, user: str) -> None:
    """Let pass who is known.

    Raises:
        ApiError: 403, it is nobody.
    """
    if access.is_required and user == NOBODY:
        raise forbidden(TARGET, "create", user)


def answer(access: Access, body: bytes) -> bytes:
    """The review with its status.

    Raises:
        ApiError: 400 or 422, it asks for nothing that can be judged.
    """
    review = decoded(body)
    spec = review.get("spec") or {}
    if causes := list(_faults(review.get("metadata") or {}, spec)):
        raise invalid_object(TARGET, "", causes)
    asked = spec.get("resourceAttributes") or {}
    group, resource, subresource, verb, name, namespace = (
        asked.get(field, "") for field in ("group", "resource", "subresource", "verb", "name", "namespace")
    )
    wanted = [group, f"{resource}/{subresource}" if subresource else resource, verb, name, namespace]
    status: dict[str, Any] = {"allowed": access.allows(wanted)}
    if status["allowed"]:
        status["reason"] = f"RBAC: allowed by {BINDING}"
    return msgspec.json.encode(
        {"kind": TARGET.resource.kind, "apiVersion": f"{GROUP}/v1", "metadata": {}, "spec": spec, "status": status}
    )


def _faults(metadata: dict[str, Any], spec: dict[str, Any]) -> Iterator[Cause]:
    """What is wrong with a review; the server itself ignores managed fields."""
    attributes, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if attributes is not None and path is not None:
        yield invalid("spec.nonResourceAttributes", path, "cannot be specified in combination with resourceAttributes")
    if attributes is None and path is None:
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        yield invalid("spec.resourceAttributes", None, why)
    if metadata.keys() - {"managedFields"}:
        yield invalid("metadata", metadata, "must be empty")
