"""The cluster is followed through real proxies, and by the environments and authorities that companies have.

The server is at 0.0.0.0 in these kubeconfigs.  Linux connects that to the machine itself, and unlike 127.0.0.1 it is no
loopback address, which needs no proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from nftproxy_conformance.apiserver import ApiServer

from nftproxy.model.errors import BadInput, Unavailable
from nftproxy.sources import tunnel
from nftproxy.sources.api_client import ApiClient
from nftproxy.sources.api_connection import Timeouts
from tests.sources.api_client.following import NODE, TIMES, following
from tests.sources.api_client.test_access import reads, rewrite
from tests.support.processes import kill
from tests.support.waiting import wait_until

VARIABLES = "HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy".split()


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without proxies."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def free_port() -> int:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    assert isinstance(port, int)
    return port


def listens(port: int) -> bool:
    """Whether a server accepts connections."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@contextlib.contextmanager
def started(port: int, *command: str) -> Iterator[None]:
    """Run a proxy."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: listens(port), lambda: f"{command[0]} doesn't listen")
        yield
    finally:
        kill(process)


class Proxies:
    """A proxy by HTTP, which logs its connections, and one by SOCKS."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "tinyproxy.log"
        self.config = directory / "tinyproxy.conf"
        self.http, self.socks = free_port(), free_port()

    def connections(self, port: int) -> int:
        """How many connections to a port the HTTP proxy has made."""
        return self.log.read_text().count(f"CONNECT 0.0.0.0:{port} ")


@pytest.fixture
def proxies(tmp_path: Path) -> Iterator[Proxies]:
    """Both proxies, which take connections to any server.  The HTTP proxy requires a password."""
    made = Proxies(tmp_path)
    made.config.write_text(
        f'Port {made.http}\nListen 127.0.0.1\nLogFile "{made.log}"\nLogLevel Connect\nBasicAuth us er\n'
    )
    with (
        started(made.http, "tinyproxy", "-d", "-c", str(made.config)),
        started(made.socks, "microsocks", "-i", "127.0.0.1", "-p", str(made.socks), "-u", "us", "-P", "p@ss"),
    ):
        yield made


def kubeconfig(server: ApiServer, tmp_path: Path, **cluster: str) -> Path:
    """A kubeconfig with the server at an address that isn't loopback."""
    config = server.write_kubeconfig(tmp_path / "kubeconfig")
    url = f"https://0.0.0.0:{server.port}"
    return rewrite(config, cluster={"server": url, "tls_server_name": "localhost"} | cluster)


async def test_through_a_proxy_by_http(
    server: ApiServer, tmp_path: Path, proxies: Proxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTPS_PROXY leads lists and watches through the proxy, with its password, to a server of another TLS name."""
    monkeypatch.setenv("HTTPS_PROXY", f"http://us:er@127.0.0.1:{proxies.http}")
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,fd00::/8")
    await reads(server, kubeconfig(server, tmp_path))
    assert proxies.connections(server.port) == 4
    assert {request.status for request in server.requests()} == {200}


@pytest.mark.parametrize("excluded", ["0.0.0.0/8", "0.0.0.0", "*", "10.0.0.0/8,fd00::/8, 0.0.0.0/31"])
async def test_around_a_proxy(
    server: ApiServer, tmp_path: Path, proxies: Proxies, monkeypatch: pytest.MonkeyPatch, excluded: str
) -> None:
    """A server in NO_PROXY, by address or range, is reached without the proxy."""
    monkeypatch.setenv("HTTPS_PROXY", f"http://us:er@127.0.0.1:{proxies.http}")
    monkeypatch.setenv("NO_PROXY", excluded)
    await reads(server, kubeconfig(server, tmp_path))
    assert proxies.connections(server.port) == 0


@pytest.mark.parametrize("by", ["HTTPS_PROXY", "proxy-url"])
async def test_through_a_proxy_by_socks(
    server: ApiServer, tmp_path: Path, proxies: Proxies, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The environment or the kubeconfig may name a proxy by SOCKS 5, with a password."""
    url = f"socks5://us:p%40ss@127.0.0.1:{proxies.socks}"
    if by == "HTTPS_PROXY":
        monkeypatch.setenv(by, url)
    config = kubeconfig(server, tmp_path, **({"proxy_url": url} if by == "proxy-url" else {}))
    await reads(server, config)
    assert {request.status for request in server.requests()} == {200}
    way = ApiClient(str(config)).way
    named = {"HTTPS_PROXY": "HTTPS_PROXY", "proxy-url": "the kubeconfig's proxy-url"}[by]
    assert way == f"https://0.0.0.0:{server.port} through the proxy socks5://127.0.0.1:{proxies.socks} ({named})"


@pytest.mark.parametrize(
    ("scheme", "answer"),
    [
        ("http", "407 Proxy Authentication Required"),
        ("socks5", "Requested NO AUTHENTICATION REQUIRED from proxy server, but got NO ACCEPTABLE METHODS."),
    ],
)
async def test_an_error_names_the_proxy(
    server: ApiServer, tmp_path: Path, proxies: Proxies, monkeypatch: pytest.MonkeyPatch, scheme: str, answer: str
) -> None:
    """A proxy that denies the connection is named, with the setting that names it and its answer."""
    url = f"{scheme}://127.0.0.1:{proxies.http if scheme == 'http' else proxies.socks}"
    monkeypatch.setenv("HTTPS_PROXY", url)
    with pytest.raises(Unavailable) as caught:
        await ApiClient(str(kubeconfig(server, tmp_path))).read_node(NODE)
    way = f"0.0.0.0:{server.port} through the proxy {url} (HTTPS_PROXY)"
    assert str(caught.value) == f"no connection to {way}: {answer}"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\5\0\5", b"\0\x5b"])
async def test_a_socks_proxy_that_is_none(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    """A proxy that closes the connection or doesn't speak SOCKS 5 is named like any proxy that fails."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as proxy:
        url = f"socks5://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        monkeypatch.setenv("HTTPS_PROXY", url)
        with pytest.raises(Unavailable) as caught:
            await ApiClient(str(kubeconfig(server, tmp_path))).read_node(NODE)
    way = f"0.0.0.0:{server.port} through the proxy {url} (HTTPS_PROXY)"
    assert str(caught.value) == f"no connection to {way}: its answer is not of SOCKS 5"


@pytest.mark.parametrize("scheme", ["http", "socks5"])
async def test_a_proxy_that_never_answers(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """A proxy that takes the connection and is silent has the time of some connections, and is named."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("HTTPS_PROXY", url)
        way = f"0.0.0.0:{server.port} through the proxy {url} (HTTPS_PROXY)"
        monkeypatch.setattr(tunnel, "CONNECTIONS", 0.005)
        patience = Timeouts(connect=60.0, answer=3600.0, silence=3600.0)
        client = ApiClient(str(kubeconfig(server, tmp_path)), patience=patience)
        with pytest.raises(Unavailable) as caught:
            await client.read_node(NODE)
        assert str(caught.value) == f"no connection to {way}: the proxy doesn't answer within 0.3 s"


async def test_a_proxy_that_is_not_there(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy at which nobody listens is named too."""
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("HTTPS_PROXY", url)
    with pytest.raises(Unavailable, match=rf"through the proxy {url} \(HTTPS_PROXY\): Connection refused"):
        await ApiClient(str(kubeconfig(server, tmp_path))).read_node(NODE)


async def test_variables_that_are_not_needed(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NO_PROXY with ranges of IPv6 and without a proxy, and an ALL_PROXY, break nothing."""
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,fd00::/8")
    monkeypatch.setenv("ALL_PROXY", "socks5://192.0.2.1:1080")
    await reads(server, kubeconfig(server, tmp_path))


def test_a_bad_variable_is_named_at_the_start(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that is needed and has no valid URL ends the agent's start, and the variable is named."""
    monkeypatch.setenv("HTTPS_PROXY", "ftp://p")
    with pytest.raises(BadInput, match="HTTPS_PROXY: is not a URL of a proxy"):
        ApiClient(str(kubeconfig(server, tmp_path)))


async def test_in_a_pod_with_a_proxy(
    server: ApiServer, tmp_path: Path, proxies: Proxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pod the rules are the same: the server of the pod's environment is reached as NO_PROXY says."""
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxies.http}")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    account = server.write_service_account(tmp_path)
    async with following(server, ApiClient(account=account, times=TIMES)) as seen:
        await seen.right()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "0.0.0.0")
    with pytest.raises(Unavailable, match="407 Proxy Authentication Required"):
        await ApiClient(account=account, times=TIMES).read_node(NODE)


async def test_a_corporate_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An authority's file with only the intermediate that issued the server's certificate is enough, as for Go."""
    root = trustme.CA()
    intermediate = root.create_child_ca()
    monkeypatch.setattr(trustme, "CA", lambda: intermediate)
    with ApiServer(tls=True, authenticate=True) as server:
        assert server.authority is not None
        assert server.authority.certificate != root.cert_pem.bytes()
        config = server.write_kubeconfig(tmp_path / "kubeconfig")
        cluster = ApiClient(str(config), times=TIMES)
        with pytest.raises(Unavailable, match="404"):
            await cluster.read_node(NODE)
        await cluster.aclose()


async def test_another_authority_is_still_a_stranger(server: ApiServer, tmp_path: Path) -> None:
    """A server whose chain doesn't lead to a certificate in the file gets no request."""
    (tmp_path / "ca.crt").write_bytes(trustme.CA().create_child_ca().cert_pem.bytes())
    config = server.write_kubeconfig(tmp_path / "kubeconfig")
    rewrite(config, cluster={"certificate_authority_data": None, "certificate_authority": "ca.crt"})
    with pytest.raises(Unavailable, match="certificate verify failed"):
        await ApiClient(str(config)).read_node(NODE)
    assert server.requests() == []
