"""SelfSubjectAccessReview (authorization.k8s.io/v1): a client asks for its permissions, and nothing is stored.

All authenticated users may ask (the ClusterRole system:basic-user).  With RBAC a denial has no reason, as rules only
allow.  Validation and reasons are those of kube-apiserver (validation.go of pkg/apis/authorization, rule.go of
pkg/registry/rbac/validation).  Other authorizers may add `denied` and `evaluationError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from nftproxy_conformance.apiserver.access import NOBODY, Access
from nftproxy_conformance.apiserver.resources import Resource, Target
from nftproxy_conformance.apiserver.status import forbidden, invalid_object
from nftproxy_conformance.apiserver.validation import Cause, invalid
from nftproxy_conformance.apiserver.writes import decoded

GROUP, PLURAL = "authorization.k8s.io", "selfsubjectaccessreviews"
PATH = f"/apis/{GROUP}/v1/{PLURAL}"
TARGET = Target(Resource(GROUP, PLURAL, "SelfSubjectAccessReview", namespaced=False))


BINDING = 'ClusterRoleBinding "nftproxy" of ClusterRole "nftproxy" to ServiceAccount "nftproxy/kube-system"'
"""The binding that reasons name."""


def check_may_ask(access: Access, user: str) -> None:
    """Check that the user is authenticated.

    Raises:
        ApiError: 403, the user is anonymous.
    """
    if access.is_required and user == NOBODY:
        raise forbidden(TARGET, "create", user)


def answer(access: Access, body: bytes) -> bytes:
    """The review with its status.

    Raises:
        ApiError: 400 or 422, the review isn't valid.
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
    """The faults of a review.  Managed fields are ignored."""
    attributes, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if attributes is not None and path is not None:
        yield invalid("spec.nonResourceAttributes", path, "cannot be specified in combination with resourceAttributes")
    if attributes is None and path is None:
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        yield invalid("spec.resourceAttributes", None, why)
    if metadata.keys() - {"managedFields"}:
        yield invalid("metadata", metadata, "must be empty")
