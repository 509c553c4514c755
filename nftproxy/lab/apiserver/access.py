"""Who may do what: bearer tokens that come and go, the names in client certificates, and RBAC.

As on real servers a request is checked when it comes: a watch that runs goes on after its token has expired.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nftproxy.lab.apiserver.resources import Target
from nftproxy.lab.apiserver.status import ApiError, forbidden, forbidden_path

SERVICE_ACCOUNT = "system:serviceaccount:kube-system:nftproxy"
"""Whom a token stands for."""
NOBODY = "system:anonymous"
PUBLIC = {"/version", "/healthz", "/livez", "/readyz"}
"""What may be read without saying who one is (the ClusterRole system:public-info-viewer)."""


class Permission(NamedTuple):
    """One thing that is allowed; "*" is any.  A list or watch has a name if its field selector asks for one."""

    group: str
    resource: str
    verb: str
    name: str = "*"
    namespace: str = "*"

    def covers(self, wanted: Iterable[str]) -> bool:
        """Whether what is wanted is this."""
        return all(own in {"*", other} for own, other in zip(self, wanted, strict=True))


def permissions_of(documents: Iterable[Mapping[str, Any]]) -> frozenset[Permission]:
    """What the ClusterRoles and Roles among these objects allow, each to the whole of its reach; others are ignored."""
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
    """Who is let in.

    Args:
        is_required: who shows no token or certificate is nobody, and may read only what is public; otherwise nobody is
            asked.
    """

    def __init__(self, *, is_required: bool) -> None:
        self.is_required = is_required
        self.rbac: Iterable[Iterable[str]] | None = None
        """What is allowed, each as a `Permission` or a shorter tuple; None is everything."""
        self._until: dict[str, float] = {}
        self.token = self.new_token()
        """The token that is good now."""

    def new_token(self, *, grace: float = 0.0) -> str:
        """Issue another token; the present ones are good for so many seconds more."""
        end = time.monotonic() + grace
        self._until = {token: min(until, end) for token, until in self._until.items()}
        self.token = secrets.token_urlsafe(24)
        self._until[self.token] = float("inf")
        return self.token

    def expire(self, *, after: float = 0.0) -> None:
        """End every token, the newest too, after so many seconds."""
        self._until = dict.fromkeys(self._until, time.monotonic() + after)

    def user(self, authorization: str, certificate_name: str) -> str:
        """Who it is that asks.

        Args:
            authorization: the header of that name.
            certificate_name: the common name of the client's certificate, "" if it has shown none.

        Raises:
            ApiError: 401, there is a token, and it is none.
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
        """Let pass who may read a path that is no resource's.

        Raises:
            ApiError: 403, nobody may who hasn't said who it is, except what is public.
        """
        if self._is_stranger(user) and path not in PUBLIC:
            raise forbidden_path(path, user)

    def _is_stranger(self, user: str) -> bool:
        return self.is_required and user == NOBODY

    def check(self, user: str, target: Target, verb: str, name: str) -> None:
        """Let pass what is allowed.

        Args:
            user: who asks.
            target: for what.
            verb: what for.
            name: of the one object that it is about, "" if there may be several.

        Raises:
            ApiError: 403, it isn't.
        """
        if self._is_stranger(user):
            raise forbidden(target, verb, user)
        if not self.allows([target.resource.group, target.rbac_resource, verb, name, target.namespace]):
            raise forbidden(target, verb, user)

    def allows(self, wanted: Sequence[str]) -> bool:
        """Whether RBAC allows something: a group, a resource, a verb, a name and a namespace, "" for any of them."""
        return self.rbac is None or any(Permission(*allowed).covers(wanted) for allowed in self.rbac)
