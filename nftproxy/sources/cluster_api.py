"""kr8s' API of a cluster, over connections of ours.

kr8s has the kinds of objects, their paths, their forms, exec and port-forward.  All of it goes through two public
methods, `call_api` and `open_websocket`.  Here both are made over `Connection`: with client-go's rules for proxies,
authorities and kubeconfigs, bounded answers, and without the files that kr8s would leave behind
(docs/decisions/kr8s.md).

    async with cluster_api(kubeconfig) as api:
        nodes = [node async for node in api.get(Node)]
        pod = await Pod.get("web-1", "shop", api=api)
        await pod.exec(["true"])
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from nftproxy.api.responses import ErrorStatus
from nftproxy.model.errors import Unavailable
from nftproxy.sources.access import Access
from nftproxy.sources.api_connection import HEADERS, Connection, Timeouts, api_path, bounded_content
from nftproxy.sources.credentials import kubectl_credentials
from nftproxy.sources.failure_texts import failure_text
from nftproxy.sources.import_later import call_later, import_later
from nftproxy.sources.plugins import PluginRunner

# For port forwarding, paths in objects, and the names in certificates, which the agent doesn't use: 5 MB.
import_later("httpx_ws", "jsonpath", "cryptography.x509")
call_later("box", "Box")  # for kr8s' objects, which the agent makes only for a taint: 1.9 MB
import httpx  # noqa: E402
import httpx_ws  # noqa: E402
from kr8s import NotFoundError, ServerError  # noqa: E402
from kr8s.asyncio import Api  # noqa: E402
from kr8s.asyncio.objects import APIObject, Node, Pod, Service, new_class  # noqa: E402

__all__ = [
    "APIObject",
    "ApiDenies",
    "ClusterApi",
    "Node",
    "NotFoundError",
    "Pod",
    "ServerError",
    "Service",
    "cluster_api",
    "new_class",
]

LARGEST_ANSWER = 3 * 2**20
"""Bytes of an answer to a single request: kube-apiserver takes no larger object."""


class ApiDenies(Unavailable):
    """The API has answered with an error of this HTTP status: it denies the request, or can't serve it."""

    def __init__(self, answer: ErrorStatus) -> None:
        super().__init__(f"the API denies it: {answer.message}")
        self.answer = answer
        self.status = answer.code


class ClusterApi(Api):
    """kr8s' API, over connections of ours.

    Single requests share a connection, one after the other.  A stream or a websocket has a connection of its own.

    Args:
        connect: makes a connection.
        read: seconds until the next bytes of an answer to a single request.
        largest: the bytes of an answer, beyond which it is an error.
    """

    def __init__(self, connect: Callable[[], Connection], read: float, largest: int = LARGEST_ANSWER) -> None:
        super().__init__(bypass_factory=True)  # the factory would read credentials, and request the server's version
        self._connect = connect
        self._read = read
        self._largest = largest
        self._shared = connect()
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> ClusterApi:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection that single requests share."""
        await self._shared.aclose()

    @property
    def host(self) -> str:
        """The server of the last single request, with the proxy on the way."""
        return self._shared.host

    def failure(self, error: BaseException) -> str:
        """Describe in words why a request or a connection failed."""
        return failure_text(error, self.host, self._shared.patience)

    def error_status(self, body: bytes, code: int) -> ErrorStatus:
        """Parse an answer to a single request that is an error, as `Connection.error_status`."""
        return self._shared.error_status(body, code)

    async def fail_over(self) -> None:
        """Close the connection after an error.  The next request goes to the next address."""
        await self._shared.fail_over()

    @contextlib.asynccontextmanager
    async def call_api(
        self,
        method: str = "GET",
        version: str = "v1",
        base: str = "",
        namespace: str | None = None,
        url: str = "",
        raise_for_status: bool = True,
        stream: bool = False,
        **kwargs: Any,
    ) -> AsyncGenerator[httpx.Response]:
        """Make a request.  The arguments are kr8s', and `kwargs` are those of `httpx.AsyncClient.build_request`.

        None is left out unseen: releases of kr8s differ in which they use for an object (`data` before 0.20.10).  Only
        `timeout` has no effect, as the times of `Connection` bound every answer.

        Raises:
            TypeError: httpx doesn't know one of `kwargs`.
            kr8s.ServerError: the status is 300 or more, and `raise_for_status` is true.
            httpx.HTTPError, OSError: the connection fails.
        """
        path = _path(version, base, namespace, url)
        kwargs.pop("timeout", None)
        kwargs["headers"] = HEADERS | {name.lower(): text for name, text in (kwargs.get("headers") or {}).items()}
        if stream:
            async with self._connect() as connection:
                patience = connection.patience.silence
                async with connection.answer(method, path, patience, **kwargs) as response:
                    if raise_for_status and _is_error(response):
                        _raise(await self._whole(response, connection.patience.page), connection)
                    yield response
            return
        async with self._turn, self._shared.answer(method, path, self._read, **kwargs) as response:
            whole = await self._whole(response, self._shared.patience.page)
        if raise_for_status and _is_error(whole):
            _raise(whole, self._shared)
        yield whole

    @contextlib.asynccontextmanager
    async def open_websocket(
        self, version: str = "v1", base: str = "", namespace: str | None = None, url: str = "", **kwargs: Any
    ) -> AsyncGenerator[httpx_ws.AsyncWebSocketSession]:
        """Open a websocket, as for exec and port-forward.  `kwargs` are those of `httpx_ws.aconnect_ws`.

        Raises:
            httpx_ws.HTTPXWSException, httpx.HTTPError, OSError: the connection fails, in its use too.
        """
        async with self._connect() as connection:
            client, _ = await connection.client()
            path = _path(version, base, namespace, url)
            try:
                async with httpx_ws.aconnect_ws(path, client, **kwargs) as websocket:
                    yield websocket
            except ExceptionGroup as group:  # httpx_ws reads in a task group, which wraps errors of the body
                raise group.exceptions[0] from group

    async def _whole(self, response: httpx.Response, seconds: float) -> httpx.Response:
        """Return an answer with its content, decompressed."""
        content = await bounded_content(response, self._largest, seconds)
        if len(content) > self._largest and not _is_error(response):
            raise ConnectionError(f"an answer has more than {self._largest} bytes")
        headers = [(name, text) for name, text in response.headers.multi_items() if name not in _OF_TRANSFER]
        return httpx.Response(response.status_code, headers=headers, content=content, request=response.request)


_OF_TRANSFER = ("content-encoding", "content-length", "transfer-encoding")
"""The headers that describe the content on its way."""


def _path(version: str, base: str, namespace: str | None, url: str) -> str:
    if not base:
        return api_path(version, url, namespace or "")
    parts = [base, version, f"namespaces/{namespace}" if namespace else "", url]
    return "/".join(part for part in parts if part)


def _is_error(answer: httpx.Response) -> bool:
    """Whether an answer is an error.  A redirection is one too, as none is followed."""
    return answer.status_code >= 300


def _raise(answer: httpx.Response, connection: Connection) -> None:
    status = connection.error_status(answer.content, answer.status_code)
    raise ServerError(status.message, response=answer)


@contextlib.asynccontextmanager
async def cluster_api(
    kubeconfig: str = "", context: str = "", *, patience: Timeouts | None = None, largest: int = LARGEST_ANSWER
) -> AsyncIterator[ClusterApi]:
    """Yield kr8s' API of a cluster, for commands.

    Args:
        kubeconfig: its path, "" for the credentials that kubectl would use, or those of a pod.
        context: the context's name, "" for the current context.
        patience: how long to wait for the server.
        largest: the bytes of an answer, beyond which it is an error.

    Raises:
        BadInput: there are no credentials, or they can't be read.
    """
    times = patience or Timeouts()
    plugins = PluginRunner(times.plugin, times.plugin_again)
    access = Access(lambda: kubectl_credentials(kubeconfig, context), plugins)

    def connect() -> Connection:
        return Connection(access, times, lambda _outcome: None, lambda: None, lambda _address, _port: None)

    async with ClusterApi(connect, times.answer, largest) as api:
        yield api
