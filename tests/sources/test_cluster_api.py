"""kr8s over our own connections: its objects, its lists and its websockets, with credentials that client-go takes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.apiserver.faults import EndWatch, Fault, Respond

from nftproxy.sources.cluster_api import Node, NotFoundError, ServerError, Service, cluster_api, new_class
from tests.support import objects


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """A server with TLS that wants a token, of a version that kr8s doesn't know."""
    with ApiServer(tls=True, authenticate=True) as server:
        server.settings.version = "v1.99.0"
        yield server


async def test_objects(server: ApiServer, tmp_path: Path) -> None:
    """kr8s' classes read, list, change and create objects, with the credentials of a kubeconfig."""
    server.put(objects.node("node-a"), objects.node("node-b"), objects.service("web"))
    slices = new_class("EndpointSlice", "discovery.k8s.io/v1")
    async with cluster_api(str(server.write_kubeconfig(tmp_path / "kubeconfig"))) as api:
        assert [str(node) async for node in api.get(Node)] == ["node-a", "node-b"]
        assert [str(found) async for found in api.get(Service, namespace="shop")] == ["web"]
        node = await Node.get("node-b", api=api)
        await node.patch({"metadata": {"labels": {"a": "b"}}})
        assert node.labels["a"] == "b"
        created = slices(objects.endpoint_slice("web-1"), api=api)
        await created.create()
        assert created.metadata["resourceVersion"]
        with pytest.raises(NotFoundError):
            await Node("node-c", api=api).refresh()
        assert (await api.version())["gitVersion"] == "v1.99.0"
    assert len({request.port for request in server.requests()}) == 1, "single requests share a connection"


@pytest.mark.parametrize("status", [307, 401, 403, 500])
async def test_an_error_is_raised_at_once(server: ApiServer, tmp_path: Path, status: int) -> None:
    """An error of the API is kr8s' own exception, and isn't retried: a denied request would be made four times."""
    server.faults.add(Fault(Respond(status, "no such luck"), resource="nodes"))
    async with cluster_api(str(server.write_kubeconfig(tmp_path / "kubeconfig"))) as api:
        with pytest.raises(ServerError, match="no such luck") as caught:
            await Node("node-a", api=api).refresh()
    assert caught.value.response is not None
    assert caught.value.response.status_code == status
    assert len(server.requests()) == 1


async def test_each_argument_of_a_request_has_its_effect(server: ApiServer, tmp_path: Path) -> None:
    """A body is sent by whichever argument of httpx it comes, and an argument that httpx doesn't have is an error.

    kr8s' objects choose the argument, and have changed it: one that we don't know must not be lost.
    """
    async with cluster_api(str(server.write_kubeconfig(tmp_path / "kubeconfig"))) as api:
        for name, body in {"a": "json", "b": "content"}.items():
            made = objects.node(name)
            given: dict[str, Any] = {body: made if body == "json" else json.dumps(made)}
            async with api.call_api("POST", url="nodes", **given) as answer:
                assert answer.status_code == 201, body
        assert [str(found) async for found in api.get(Node)] == ["a", "b"]
        with pytest.raises(TypeError, match="unheard_of"):
            async with api.call_api(url="nodes", unheard_of=1):
                pass


async def test_a_watch(server: ApiServer, tmp_path: Path) -> None:
    """A stream has a connection of its own, and single requests are made beside it."""
    server.put(objects.node("node-a"))
    async with cluster_api(str(server.write_kubeconfig(tmp_path / "kubeconfig"))) as api:
        changes: list[str] = []
        async for kind, node in api.watch("nodes"):
            changes.append(f"{kind} {node}")
            if len(changes) == 1:
                await node.patch({"metadata": {"labels": {"a": "b"}}})
            else:
                server.faults.add(Fault(EndWatch()))
    assert changes == ["ADDED node-a", "MODIFIED node-a"]


async def test_answers_are_bounded(server: ApiServer, tmp_path: Path) -> None:
    """An answer with more bytes than expected is an error."""
    server.put(*(objects.node(f"node-{number}") for number in range(20)))
    async with cluster_api(str(server.write_kubeconfig(tmp_path / "kubeconfig")), largest=1000) as api:
        with pytest.raises(ConnectionError, match="more than 1000 bytes"):
            _ = [node async for node in api.get(Node)]


async def test_a_websocket(tmp_path: Path) -> None:
    """A websocket, as for exec, is opened over a connection of ours.  Without TLS it has no token."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        fields = dict(line.split(b": ") for line in heads[0].splitlines()[1:-1])
        key = {name.lower(): value for name, value in fields.items()}[b"sec-websocket-key"]
        proof = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + proof + b"\r\n\r\n\x82\x05hello"
        )
        await reader.read()
        writer.close()

    started = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with started:
        write_kubeconfig(tmp_path, started.sockets[0].getsockname()[1], {"token": "secret"})
        async with (
            cluster_api(str(tmp_path / "kubeconfig")) as api,
            api.open_websocket(version="v1", namespace="shop", url="pods/web/exec", params={"command": "ls"}) as opened,
        ):
            assert await opened.receive_bytes(timeout=30.0) == b"hello"
    assert heads[0].startswith(b"GET /api/v1/namespaces/shop/pods/web/exec?command=ls HTTP/1.1\r\n")
    assert b"secret" not in heads[0]


def test_impersonation(tmp_path: Path) -> None:
    """A kubeconfig's `as`, `as-uid`, `as-groups` and `as-user-extra` are headers of each request, as in client-go.

    As in client-go, a token is not sent without TLS.
    """
    seen: list[dict[str, list[str]]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields: dict[str, list[str]] = {}
        for line in head.splitlines()[1:-1]:
            name, _, value = line.partition(": ")
            fields.setdefault(name.lower(), []).append(value)
        seen.append(fields)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as started:
            user: dict[str, Any] = {"token": "secret", "as": "jane", "as-uid": "7", "as-groups": ["a", "b"]}
            user["as-user-extra"] = {"scopes": ["x", "y"], "example.org/é": ["z"]}
            write_kubeconfig(tmp_path, started.sockets[0].getsockname()[1], user)
            async with cluster_api(str(tmp_path / "kubeconfig")) as api:
                await api.version()

    asyncio.run(main())
    acting = {name: values for name, values in seen[0].items() if name.startswith(("impersonate", "authorization"))}
    assert acting == {
        "impersonate-user": ["jane"],
        "impersonate-uid": ["7"],
        "impersonate-group": ["a", "b"],
        "impersonate-extra-scopes": ["x", "y"],
        "impersonate-extra-example.org%2f%c3%a9": ["z"],
    }


def write_kubeconfig(directory: Path, port: int, user: dict[str, Any]) -> None:
    """A kubeconfig of a server without TLS at a port."""
    cluster = {"server": f"http://127.0.0.1:{port}"}
    config = {
        "clusters": [{"name": "a", "cluster": cluster}],
        "users": [{"name": "a", "user": user}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "current-context": "a",
    }
    (directory / "kubeconfig").write_text(json.dumps(config))
