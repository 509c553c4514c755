"""The test API server stops and starts as real servers do, records every request, and runs in any namespace."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from nftproxy_conformance.apiserver import ApiServer, documents
from nftproxy_conformance.lab import Namespace

from nftproxy.model.errors import Unavailable
from tests.conformance.apiserver.clients import (
    SERVICES,
    WEB,
    client_of,
    listed,
    names,
    refusal,
    service,
    short,
    watching,
)
from tests.support.processes import killed_on_error
from tests.support.waiting import PATIENCE

# ---- restarts ------------------------------------------------------------------------------------------------------


def test_a_restart_cuts_all_connections(server: ApiServer, client: httpx.Client) -> None:
    """After a restart the server has its port and its objects, and a watch can go on."""
    server.put(service("a"))
    url = server.url
    with watching(client) as events, watching(client, resourceVersion=server.revision) as silent:
        assert next(events).name == "a"
        server.restart()
        for cut in (events, silent):
            with pytest.raises(httpx.ReadError):
                next(cut)
    assert server.url == url
    server.put(service("b"))
    with watching(client, resourceVersion=server.revision - 1) as events:
        assert next(events).name == "b"


def test_a_stopped_server_refuses_connections(server: ApiServer, client: httpx.Client) -> None:
    """While it is stopped the port is closed.  Objects written then are there after the next start."""
    listed(client)
    server.stop()
    with pytest.raises(httpx.ConnectError):
        client.get(SERVICES)
    server.put(service())
    server.start()
    server.start()
    assert names(listed(client)) == ["web"]


def test_a_stopped_server_resets_a_late_handshake(guarded: ApiServer) -> None:
    """A client that was in its TLS handshake when the server stopped gets a reset, and no answer."""
    assert guarded.authority
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = guarded.authority.client_context().wrap_bio(coming, going, server_hostname="127.0.0.1")
    with socket.create_connection(("127.0.0.1", guarded.port), PATIENCE) as client:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                client.sendall(going.read())
                coming.write(client.recv(65536))
        guarded.stop()
        tls.write(f"GET {SERVICES} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        client.sendall(going.read())
        with pytest.raises(ConnectionResetError):
            list(iter(lambda: client.recv(65536), b""))


def test_a_restart_may_lose_the_history(server: ApiServer, client: httpx.Client) -> None:
    """Then a watch from before must list anew."""
    old = server.revision
    server.put(service())
    server.restart(keep_history=False)
    with watching(client, resourceVersion=old) as events:
        assert next(events).object["code"] == 410


def test_a_restart_may_restore_a_backup(server: ApiServer, client: httpx.Client) -> None:
    """Later changes are gone, no version is newer than the backup, and a watch from a lost version gets nothing."""
    old = server.put(*(service(name) for name in "abcdef"))
    server.restart(revision=3)
    content = listed(client)
    assert content["metadata"]["resourceVersion"] == "3"
    assert {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in content["items"]} == {
        "a": "2",
        "b": "3",
    }
    assert refusal(client.get(SERVICES, params={"resourceVersion": old})) == (504, "Timeout")
    with watching(client, resourceVersion=old, timeoutSeconds=1) as events:
        server.put(service("g"))
        assert short(events) == []
    assert server.objects("Service")[-1]["metadata"]["resourceVersion"] == "4"


# ---- the journal, and namespaces -----------------------------------------------------------------------------------


def test_every_request_is_recorded(server: ApiServer, client: httpx.Client) -> None:
    """A test can count requests by their fields, and see their headers."""
    before = time.time()
    client.get(SERVICES, params={"limit": "5"}, headers={"user-agent": "me"})
    client.get(f"{WEB}/status")
    request, other = server.requests()
    assert (request.verb, request.resource, request.namespace, request.query) == (
        "list",
        "services",
        "",
        {"limit": "5"},
    )
    assert (request.status, request.peer, request.headers["user-agent"]) == (200, "127.0.0.1", "me")
    assert request.bytes == len(client.get(SERVICES).content)
    assert before <= request.time <= (request.ended or 0) <= time.time()
    assert (other.verb, other.resource, other.namespace, other.name) == ("get", "services/status", "default", "web")
    assert len(server.requests(verb="list", resource="services")) == 2
    server.clear_requests()
    assert server.requests() == []


def test_a_test_can_wait_for_requests(server: ApiServer, client: httpx.Client) -> None:
    """It returns when the requests arrive, and an error lists the requests that came instead."""
    client.get(SERVICES)
    assert server.wait_for_requests(1, verb="list", timeout=0)[0].resource == "services"
    with pytest.raises(TimeoutError, match="list services"):
        server.wait_for_watches(1, timeout=0.05)
    with watching(client):
        server.wait_until(lambda: server.get("Service", "default", "web") is None and server.watches() == 1)


def test_both_families() -> None:
    """It listens on addresses of both families, with the same port, and with TLS under either name."""
    with ApiServer(hosts=["127.0.0.1", "::1"], tls=True) as server, client_of(server) as client:
        assert server.urls == (f"https://127.0.0.1:{server.port}", f"https://[::1]:{server.port}")
        assert [client.get(f"{url}/version").status_code for url in server.urls] == [200, 200]


def test_a_port_that_is_taken_is_an_error(server: ApiServer) -> None:
    """It says so, and leaves nothing behind."""
    with pytest.raises(OSError, match="in use"), ApiServer(port=server.port):
        pass


@pytest.fixture
def elsewhere() -> Iterator[Namespace]:
    """A network namespace with an address of its own."""
    try:
        made = Namespace("elsewhere")
    except Unavailable as error:
        pytest.skip(str(error))
    with made:
        made.ip("link set lo up", "address add 192.0.2.1/32 dev lo")
        yield made


def test_in_a_namespace(elsewhere: Namespace) -> None:
    """With sockets of a namespace the server is in there, and only there."""

    def status(url: str) -> int:
        return httpx.get(f"{url}/version", verify=False, trust_env=False, timeout=PATIENCE).status_code

    with ApiServer(hosts=["192.0.2.1"], make_socket=elsewhere.socket) as server:
        assert elsewhere.call(status, server.url) == 200
        with pytest.raises(OSError, match="assign"):
            socket.create_server(("192.0.2.1", 0))


def test_the_thread_outlives_what_it_calls(server: ApiServer, client: httpx.Client) -> None:
    """If a function in the server's thread exits, nobody waits in vain: not its caller, nor the server's end."""

    class Exiting(dict[str, object]):
        def __getitem__(self, _: str) -> object:
            raise SystemExit("from the thread")

    with pytest.raises(SystemExit, match="from the thread"):
        server.put(Exiting())
    server.put(service("a"))
    assert names(listed(client)) == ["a"]


def test_as_a_process(tmp_path: Path) -> None:
    """It prints its URL, serves the manifests' objects, takes writes, writes credentials, and ends on SIGTERM."""
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "a.yaml").write_text(
        yaml.safe_dump_all([service("a"), {"kind": "Secret", "metadata": {}}])
    )
    (tmp_path / "manifests" / "b.json").write_text('{"kind": "ServiceList", "items": [{"metadata": {"name": "b"}}]}')
    config = tmp_path / "config"
    command = [sys.executable, "-m", "nftproxy_conformance.apiserver", "--manifests", str(tmp_path / "manifests")]
    with (
        subprocess.Popen([*command, "--kubeconfig", str(config)], stdout=subprocess.PIPE, text=True) as process,
        killed_on_error(process),
    ):
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert yaml.safe_load(config.read_text())["clusters"][0]["cluster"]["server"] == url
        with httpx.Client(base_url=url, verify=False, trust_env=False) as client:
            assert names(listed(client)) == ["a", "b"]
            assert client.put(WEB.replace("web", "b"), json=service("b", clusterIP="10.96.0.11")).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_manifests_name_their_kinds(tmp_path: Path) -> None:
    """Items of a typed list get the kind and version of the list, empty documents are nothing."""
    (tmp_path / "x.yml").write_text("---\n---\nkind: NodeList\napiVersion: v1\nitems: [{metadata: {name: n}}]\n")
    assert list(documents(tmp_path)) == [{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}}]
