"""The server: its thread, its sockets, and its methods for tests.

All work happens in a thread with its own event loop.  Methods wait until that thread has done their work.  So after
`put` every watch has the event in its queue, and after `stop` the port is closed.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from nftproxy_conformance.apiserver.access import Access, Permission, permissions_of
from nftproxy_conformance.apiserver.credentials import Authority, Files, Proof
from nftproxy_conformance.apiserver.faults import Faults
from nftproxy_conformance.apiserver.handler import Handler
from nftproxy_conformance.apiserver.journal import Journal, Request
from nftproxy_conformance.apiserver.listener import Listener, MakeSocket
from nftproxy_conformance.apiserver.pod_exec import RunInPod
from nftproxy_conformance.apiserver.resources import Object, resource_named, resource_of
from nftproxy_conformance.apiserver.settings import Settings
from nftproxy_conformance.apiserver.store import Store
from nftproxy_conformance.apiserver.watches import Watch

PATIENCE = 60.0
"""The default timeout in seconds for events that should come within a second."""


class ApiServer:
    """A Kubernetes API server for tests, with the resources that a service proxy reads.

    Args:
        hosts: the addresses to listen on, of IPv4 or IPv6, all with the same port.
        port: the port, or 0 for any free port, which stays the same through restarts.
        tls: HTTPS with a certificate authority of its own, instead of HTTP.
        authenticate: whether a token, or with TLS a client certificate, is required.
        history: the changes to keep of each resource.
        settings: its behaviour.
        make_socket: makes a socket of a family and a type, in the network namespace of the server.
    """

    def __init__(
        self,
        *,
        hosts: Sequence[str] = ("127.0.0.1",),
        port: int = 0,
        tls: bool = False,
        authenticate: bool = False,
        history: int = 100_000,
        settings: Settings | None = None,
        make_socket: MakeSocket = socket.socket,
    ) -> None:
        self.settings = settings or Settings()
        self.authority = Authority(*hosts) if tls else None
        self._hosts = hosts
        self._access = Access(is_required=authenticate)
        self._files = Files()
        self._journal = Journal()
        self._store = Store(history)
        self._watches: dict[Watch, None] = {}
        self.faults = Faults(lambda function: self._listener.call(function), self._watches)
        self._handler = Handler(self._store, self._access, self.settings, self._journal, self.faults, self._watches)
        context = self.authority.server_context() if self.authority else None
        self._listener = Listener(self._handler, hosts, port, make_socket, context)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        self.close()
        if error is None and self._journal.failures:
            raise self._journal.failures[0]

    # Start and stop

    def start(self) -> None:
        """Start to listen, unless the server listens already.

        Raises:
            OSError: the address or port isn't available.
        """
        self._listener.start()

    def stop(self) -> None:
        """Stop listening and reset all connections.  Objects, history and faults stay."""
        self._listener.stop()

    def restart(self, *, keep_history: bool = True, revision: int | None = None) -> None:
        """Stop, and start on the same port.

        Args:
            keep_history: whether watches can go on where they were cut.
            revision: of a backup that is restored: objects are as they were then, the counting goes on from there, and
                there is no history.
        """
        self.stop()
        if revision is not None:
            self.restore(revision)
        elif not keep_history:
            self.compact()
        self.start()

    def restore(self, revision: int) -> None:
        """Restore the backup of a revision, while the server is stopped."""
        self._listener.call(lambda: self._store.restore(revision))

    def close(self) -> None:
        """Stop for good.  Its journal can still be read."""
        self._listener.close()

    # Addresses and credentials

    @property
    def port(self) -> int:
        """The port, once it has been started."""
        return self._listener.port

    @property
    def url(self) -> str:
        """The URL at the first of its addresses."""
        return self.urls[0]

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs at all of its addresses."""
        scheme = "https" if self.authority else "http"
        return tuple(f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}" for host in self._hosts)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a pod finds the server."""
        return {"KUBERNETES_SERVICE_HOST": self._hosts[0], "KUBERNETES_SERVICE_PORT": str(self.port)}

    @property
    def token(self) -> str:
        """The valid bearer token."""
        return self._access.token

    @property
    def rbac(self) -> Iterable[Iterable[str]] | None:
        """The permissions: (group, resource, verb) with an optional name and namespace.  None allows everything."""
        return self._access.rbac

    @rbac.setter
    def rbac(self, allowed: Iterable[Iterable[str]] | None) -> None:
        self._access.rbac = allowed

    def allow(self, *roles: Mapping[str, Any]) -> frozenset[Permission]:
        """Allow only the permissions of these ClusterRoles and Roles, and return them."""
        allowed = permissions_of(roles)
        self._access.rbac = allowed
        return allowed

    def run_in_pods(self, run: RunInPod) -> None:
        """Run commands in pods (`exec`) by this function, in the server's thread."""
        self._handler.run_in_pod = run

    def rotate_token(self, *, grace: float = 0.0, publish: bool = True) -> str:
        """Issue a new token.

        Args:
            grace: seconds for which old tokens stay valid.
            publish: whether to write it into all files of credentials.  `publish_token` does so later.
        """
        token = self._listener.call(lambda: self._access.new_token(grace=grace))
        if publish:
            self.publish_token()
        return token

    def publish_token(self) -> None:
        """Write the valid token into all files of credentials.  Concurrent calls run one at a time."""
        self._listener.call(lambda: self._files.write(self.token))

    def expire_token(self, *, after: float = 0.0) -> None:
        """Refuse every existing token `after` seconds from now."""
        self._listener.call(lambda: self._access.expire(after=after))

    def write_kubeconfig(
        self, path: Path, *, proof: Proof = Proof.TOKEN, embed: bool = True, url: str | None = None
    ) -> Path:
        """Write a kubeconfig, now and whenever the token changes, and return its path.

        Args:
            path: its path.
            proof: the kind of credentials in it.
            embed: whether certificates and keys are embedded, or files beside it.
            url: the server's URL, by default at its first address.
        """
        self._files.add_kubeconfig(path, url or self.url, self.authority, proof, embed=embed, token=self.token)
        return path

    def write_service_account(self, directory: Path) -> Path:
        """Write token, ca.crt and namespace as a pod has them, and again when the token changes."""
        self._files.add_account(directory, self.authority, token=self.token)
        return directory

    # Objects

    @property
    def revision(self) -> int:
        """The newest resourceVersion."""
        return self._store.revision

    def put(self, *documents: Mapping[str, Any]) -> int:
        """Store objects with their status, add missing metadata, and return the revision."""

        def put() -> int:
            for document in documents:
                self._store.put(resource_of(document), document)
            return self._store.revision

        return self._listener.call(put)

    def delete(self, kind: str, namespace: str, name: str) -> int:
        """Remove an object and return the revision.  The namespace is "" for cluster-wide kinds.

        Raises:
            KeyError: the object doesn't exist.
        """

        def delete() -> int:
            self._store.delete(resource_named(kind), (namespace, name))
            return self._store.revision

        return self._listener.call(delete)

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """An object, or None."""
        stored = self._listener.call(lambda: self._store.get(resource_named(kind), (namespace, name)))
        return None if stored is None else stored.decoded()

    def objects(self, kind: str) -> list[Object]:
        """All objects of a kind (or plural), sorted by namespace and name."""
        stored = self._listener.call(lambda: self._store.at(resource_named(kind), self._store.revision))
        return [each.decoded() for each in stored]

    def advance(self, revision: int) -> None:
        """Raise the newest resourceVersion to this, as if other objects had been written."""

        def advance() -> None:
            self._store.revision = max(self._store.revision, revision)

        self._listener.call(advance)

    def compact(self) -> None:
        """Drop the history: a watch or a page from any older resourceVersion is answered with 410."""
        self._listener.call(self._store.compact)

    # The journal

    def requests(self, **wanted: str | int) -> list[Request]:
        """The requests with these values: `requests(verb="list", status=200)`."""
        return self._journal.requests(**wanted)

    def clear_requests(self) -> None:
        """Clear the journal except running watches."""
        self._journal.clear()

    def watches(self, resource: str = "") -> int:
        """The number of running watches, of a resource or of all."""
        return sum(1 for watch in list(self._watches) if resource in {"", watch.request.resource})

    def wait_until(self, condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
        """Wait until a condition on requests or watches is true.  It is checked at each progress of a request.

        Raises:
            TimeoutError: it isn't true after `timeout` seconds.
        """
        self._journal.wait_until(condition, timeout)

    def wait_for_requests(self, count: int, *, timeout: float = PATIENCE, **wanted: str | int) -> list[Request]:
        """Wait until `count` requests with these values have come, and return them."""
        self.wait_until(lambda: len(self.requests(**wanted)) >= count, timeout)
        return self.requests(**wanted)

    def wait_for_watches(self, count: int, resource: str = "", *, timeout: float = PATIENCE) -> None:
        """Wait until exactly `count` watches run."""
        self.wait_until(lambda: self.watches(resource) == count, timeout)
