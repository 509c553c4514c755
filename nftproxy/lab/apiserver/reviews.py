"""SelfSubjectAccessReview (authorization.k8s.io/v1): a client asks what it may do, and nothing is stored.

Whoever the server knows may ask (the ClusterRole system:basic-user), and nobody else.  With RBAC a denial has no
reason: rules only allow.
"""

from __future__ import annotations

from typing import Any

import msgspec

from nftproxy.lab.apiserver.access import NOBODY, Access
from nftproxy.lab.apiserver.resources import Resource, Target
from nftproxy.lab.apiserver.status import forbidden, invalid_object
from nftproxy.lab.apiserver.validation import invalid
from nftproxy.lab.apiserver.writes import decoded

GROUP, PLURAL = "authorization.k8s.io", "selfsubjectaccessreviews"
PATH = f"/apis/{GROUP}/v1/{PLURAL}"
TARGET = Target(Resource(GROUP, PLURAL, "SelfSubjectAccessReview", namespaced=False))


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
    spec = decoded(body).get("spec") or {}
    asked = spec.get("resourceAttributes")
    if (asked is None) == (spec.get("nonResourceAttributes") is None):
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        raise invalid_object(TARGET, "", [invalid("spec.resourceAttributes", asked, why)])
    asked = asked or {}
    wanted = [asked.get(name, "") for name in ("group", "resource", "verb", "name", "namespace")]
    status: dict[str, Any] = {"allowed": access.allows(wanted)}
    if status["allowed"]:
        status["reason"] = 'RBAC: allowed by ClusterRoleBinding "nftproxy" of ClusterRole "nftproxy"'
    return msgspec.json.encode(
        {"kind": TARGET.resource.kind, "apiVersion": f"{GROUP}/v1", "metadata": {}, "spec": spec, "status": status}
    )
