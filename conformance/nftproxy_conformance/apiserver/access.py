"""Authentication and authorization: bearer tokens that rotate, names in client certificates, and RBAC.

As on real servers, a request is checked when it arrives.  A running watch goes on after its token has expired.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nftproxy_conformance.apiserver.resources import Target
from nftproxy_conformance.apiserver.status import ApiError, forbidden, forbidden_path

SERVICE_ACCOUNT = "system:serviceaccount:kube-system:nftproxy"
"""The user of a token."""
NOBODY = "system:anonymous"
PUBLIC = {"/version", "/healthz", "/livez", "/readyz"}
"""Paths that anonymous clients may read (the ClusterRole system:public-info-viewer)."""


class Permission(NamedTuple):
    """A permission, in which "*" matches anything.  A list has a name if its field selector names an object."""

    group: str
    resource: str
    verb: str
    name: str = "*"
    namespace: str = "*"

    def covers(self, wanted: Iterable[str]) -> bool:
        """True if this permission covers a request."""
        return all(own in {"*", other} for own, other in zip(self, wanted, strict=True))


def permissions_of(documents: Iterable[Mapping[str, Any]]) -> frozenset[Permission]:
    """The permissions of the ClusterRoles and Roles among these objects.  Other objects are ignored."""
    return frozenset(
        Permission(*each, namespace)
        for document in documents
        if document.get("kind") in {"ClusterRole", "Role"}
        for namespace in [document["metadata"].get("namespace", "default") if document["kind"] == "Role" else "*"]
        for rule in document.get("rules") or ()
        for each in itertools.product(
            rule.get("apiGroups") or (),
            rule.get("resources") or (),
            rule["verbs"],
            rule.get("resourceNames") or ("*",),
        )
    )


class Access:
    """Authenticates users and checks their requests.

    Args:
        is_required: whether credentials are needed.  If so, clients without them are anonymous and may read public
            paths only.
    """

    def __init__(self, *, is_required: bool) -> None:
        self.is_required = is_required
        self.rbac: Iterable[Iterable[str]] | None = None
        """The permissions, each as a `Permission` or a shorter tuple.  None allows everything."""
        self._until: dict[str, float] = {}
        self.token = self.new_token()
        """The valid token."""

    def new_token(self, *, grace: float = 0.0) -> str:
        """Issue a new token.  The present tokens stay valid for `grace` seconds."""
        end = time.monotonic() + grace
        self._until = {token: min(until, end) for token, until in self._until.items()}
        self.token = secrets.token_urlsafe(24)
        self._until[self.token] = float("inf")
        return self.token

    def expire(self, *, after: float = 0.0) -> None:
        """Let every token expire `after` seconds from now, the newest too."""
        self._until = dict.fromkeys(self._until, time.monotonic() + after)

    def user(self, authorization: str, certificate_name: str) -> str:
        """The user of a request.

        Args:
            authorization: the header of that name.
            certificate_name: the common name of the client's certificate, or "".

        Raises:
            ApiError: 401, the token is invalid.
        """
        if certificate_name:
            return certificate_name
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() == "bearer" and self._until.get(token.strip(), 0.0) > time.monotonic():
            return SERVICE_ACCOUNT
        if self.is_required and authorization:
            raise ApiError(401, "Unauthorized")
        return NOBODY

    def check_path(self, user: str, path: str) -> None:
        """Check that a user may read a path outside of resources.

        Raises:
            ApiError: 403, an anonymous client asks for a path that isn't public.
        """
        if self._is_stranger(user) and path not in PUBLIC:
            raise forbidden_path(path, user)

    def _is_stranger(self, user: str) -> bool:
        return self.is_required and user == NOBODY

    def check(self, user: str, target: Target, verb: str, name: str) -> None:
        """Check that a request is allowed.

        Args:
            user: the user.
            target: the resource.
            verb: the verb of RBAC.
            name: the name of the object, "" for several objects.

        Raises:
            ApiError: 403, it isn't allowed.
        """
        if self._is_stranger(user):
            raise forbidden(target, verb, user)
        if not self.allows([target.resource.group, target.rbac_resource, verb, name, target.namespace]):
            raise forbidden(target, verb, user)

    def allows(self, wanted: Sequence[str]) -> bool:
        """True if RBAC allows a group, a resource, a verb, a name and a namespace."""
        return self.rbac is None or any(Permission(*allowed).covers(wanted) for allowed in self.rbac)
