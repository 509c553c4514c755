"""The server itself: its thread, its sockets, and what a test does with it.

Everything happens in one thread with its own event loop.  What tests call waits until that thread has done it, so that
after `put` every watch has the event in its queue, and after `stop` nobody listens.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nftproxy.lab.apiserver.access import Access, Permission, permissions_of
from nftproxy.lab.apiserver.credentials import Authority, Files, Proof
from nftproxy.lab.apiserver.faults import Faults
from nftproxy.lab.apiserver.handler import Handler
from nftproxy.lab.apiserver.journal import Journal, Request
from nftproxy.lab.apiserver.listener import Listener, MakeSocket
from nftproxy.lab.apiserver.resources import resource_named, resource_of
from nftproxy.lab.apiserver.settings import Settings
from nftproxy.lab.apiserver.store import Object, Store
from nftproxy.lab.apiserver.watches import Watch

PATIENCE = 10.0
"""Seconds to wait by default for what should happen within one."""


class ApiServer:
    """A Kubernetes API server for tests, with the resources that a service proxy reads.

    Args:
        hosts: the addresses to listen on, of IPv4 or IPv6, all with the same port.
        port: the port; 0 is any that is free, and stays the same through restarts.
        tls: HTTPS with a certificate authority of its own, and not HTTP.
        authenticate: whether a token, or with TLS a client certificate, is asked for.
        history: how many changes of each resource are kept.
        settings: how it behaves.
        make_socket: makes a socket of a family and a type, in the network namespace where the server is to be.
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
        handler = Handler(self._store, self._access, self.settings, self._journal, self.faults, self._watches)
        context = self.authority.server_context() if self.authority else None
        self._listener = Listener(handler, hosts, port, make_socket, context)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        if error is None and self._journal.failures:
            raise self._journal.failures[0]

    # Its life

    def start(self) -> None:
        """Listen; does nothing if it does already.

        Raises:
            OSError: the address or port can't be had.
        """
        self._listener.start()

    def stop(self) -> None:
        """Listen no more and reset all connections; objects, history and faults stay."""
        self._listener.stop()

    def restart(self, *, keep_history: bool = True, revision: int | None = None) -> None:
        """Stop, and start on the same port.

        Args:
            keep_history: whether watches can go on where they were cut.
            revision: of a backup that is restored: objects are as they were then, the counting goes on from there,
                and there is no history.
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
        """Stop for good; what it has recorded can still be read."""
        self._listener.close()

    # Where it is, and who may come

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
        """The bearer token that is good now."""
        return self._access.token

    @property
    def rbac(self) -> Iterable[Iterable[str]] | None:
        """What is allowed: (group, resource, verb), or with a name and a namespace more; None is everything."""
        return self._access.rbac

    @rbac.setter
    def rbac(self, allowed: Iterable[Iterable[str]] | None) -> None:
        self._access.rbac = allowed

    def allow(self, *roles: Mapping[str, Any]) -> frozenset[Permission]:
        """Allow only what these ClusterRoles and Roles do; returns it."""
        allowed = permissions_of(roles)
        self._access.rbac = allowed
        return allowed

    def rotate_token(self, *, grace: float = 0.0, publish: bool = True) -> str:
        """Have a new token, in all files that were written too; the old ones are refused after so many seconds.

        Args:
            grace: those seconds.
            publish: whether it stands in the files already; `publish_token` puts it there later.
        """
        token = self._listener.call(lambda: self._access.new_token(grace=grace))
        if publish:
            self.publish_token()
        return token

    def publish_token(self) -> None:
        """Write the token that is good now into all files that were written; of several that write, one at a time."""
        self._listener.call(lambda: self._files.write(self.token))

    def expire_token(self, *, after: float = 0.0) -> None:
        """Refuse every token there is after so many seconds."""
        self._listener.call(lambda: self._access.expire(after=after))

    def write_kubeconfig(
        self, path: Path, *, proof: Proof = Proof.TOKEN, embed: bool = True, url: str | None = None
    ) -> Path:
        """Write a kubeconfig, and again when the token changes; returns its path.

        Args:
            path: where.
            proof: by what its user is known.
            embed: whether certificates and keys stand in it, and not in files beside it.
            url: the server's; by default at the first of its addresses.
        """
        self._files.add_kubeconfig(path, url or self.url, self.authority, proof, embed=embed, token=self.token)
        return path

    def write_service_account(self, directory: Path) -> Path:
        """Write token, ca.crt and namespace as a pod has them, and again when the token changes."""
        self._files.add_account(directory, self.authority, token=self.token)
        return directory

    # Its objects

    @property
    def revision(self) -> int:
        """The newest resourceVersion."""
        return self._store.revision

    def put(self, *documents: Mapping[str, Any]) -> int:
        """Write objects as they are, status and all, with the metadata that they lack; returns the revision."""

        def put() -> int:
            for document in documents:
                self._store.put(resource_of(document), document)
            return self._store.revision

        return self._listener.call(put)

    def delete(self, kind: str, namespace: str, name: str) -> int:
        """Remove an object; returns the revision.  The namespace is "" for what has none.

        Raises:
            KeyError: it isn't there.
        """

        def delete() -> int:
            self._store.delete(resource_named(kind), (namespace, name))
            return self._store.revision

        return self._listener.call(delete)

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """An object as it is, None if it isn't there."""
        stored = self._listener.call(lambda: self._store.get(resource_named(kind), (namespace, name)))
        return None if stored is None else stored.decoded()

    def objects(self, kind: str) -> list[Object]:
        """All objects of a kind (or plural), sorted by namespace and name."""
        stored = self._listener.call(lambda: self._store.at(resource_named(kind), self._store.revision))
        return [each.decoded() for each in stored]

    def advance(self, revision: int) -> None:
        """Let the newest resourceVersion be this, if it is older: other objects were written meanwhile."""

        def advance() -> None:
            self._store.revision = max(self._store.revision, revision)

        self._listener.call(advance)

    def compact(self) -> None:
        """Forget the history: a watch or a page from any older resourceVersion is answered with 410."""
        self._listener.call(self._store.compact)

    # What has happened

    def requests(self, **wanted: str | int) -> list[Request]:
        """The requests that have come, of those that have these values: `requests(verb="list", status=200)`."""
        return self._journal.requests(**wanted)

    def forget_requests(self) -> None:
        """Count from nothing again; watches that run stay."""
        self._journal.forget()

    def watches(self, resource: str = "") -> int:
        """How many watches run, of one resource or of all."""
        return sum(1 for watch in list(self._watches) if resource in {"", watch.request.resource})

    def wait_until(self, condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
        """Wait for something about requests or watches to be so; asked again whenever one begins, goes on or ends.

        Raises:
            TimeoutError: it isn't, after so many seconds.
        """
        self._journal.wait_until(condition, timeout)

    def wait_for_requests(self, count: int, *, timeout: float = PATIENCE, **wanted: str | int) -> list[Request]:
        """Wait until so many requests with these values have come, and return them."""
        self.wait_until(lambda: len(self.requests(**wanted)) >= count, timeout)
        return self.requests(**wanted)

    def wait_for_watches(self, count: int, resource: str = "", *, timeout: float = PATIENCE) -> None:
        """Wait until so many watches run, no more and no fewer."""
        self.wait_until(lambda: self.watches(resource) == count, timeout)
