"""The cluster is reached by the credentials and addresses that are configured, and nobody else gets a token."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import ssl
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from nftproxy_conformance.apiserver import ApiServer, Proof
from nftproxy_conformance.apiserver.faults import EndWatch, Fault, Respond

from nftproxy.api.pauses import ReflectorTimes
from nftproxy.model.errors import BadInput, Unavailable
from nftproxy.sources import api_client, tls
from nftproxy.sources.api_client import ApiClient
from nftproxy.sources.api_connection import RequestOutcome, Timeouts
from nftproxy.sources.credentials import Credentials, is_in_pod, read_credentials
from tests.sources.api_client.following import (
    BOOKMARKS,
    NODE,
    PLURALS,
    RESOURCES,
    TIMES,
    Object,
    change,
    following,
    reach,
    service,
)

# ---- what is counted ----


async def test_requests_are_reported(server: ApiServer, tmp_path: Path) -> None:
    """Each request is reported with the status that the server answered, its method, and the server's address."""
    asked: list[RequestOutcome] = []
    cluster = reach(server, tmp_path, report_request=asked.append)

    def reported() -> Counter[tuple[str, str]]:
        return Counter((each.code, each.method) for each in asked)

    def answered() -> Counter[tuple[str, str]]:
        return Counter((str(each.status).replace("799", "other"), each.method) for each in server.requests())

    async with following(server, cluster) as seen:
        await seen.right()
        server.faults.add(Fault(EndWatch(), verb="watch", count=len(PLURALS)))
        change(server)
        server.faults.add(Fault(Respond(503), verb="watch", resource="services", count=1))
        server.faults.add(Fault(Respond(799, body=b"{}"), verb="watch", resource="nodes", count=1))
        await seen.until(lambda: all(seen.requests(status=each) for each in (503, 799)))
        change(server)
        await seen.right()
        await cluster.send_event("shop", {})
        await seen.until(lambda: reported() == answered())
    await cluster.aclose()
    assert {each.host for each in asked} == {server.url.removeprefix("https://")}
    assert all(each.seconds >= 0 for each in asked)


async def test_requests_that_nobody_answers_are_reported(server: ApiServer, tmp_path: Path) -> None:
    """A request that fails without an answer has no status, but counts."""
    asked: list[RequestOutcome] = []
    cluster = reach(server, tmp_path, report_request=asked.append)
    server.stop()
    with pytest.raises(Unavailable):
        await cluster.send_event("shop", {})
    assert [(each.code, each.method) for each in asked] == [("<error>", "POST")]


# ---- credentials ---------------------------------------------------------------------------------------------------


async def test_tokens_are_read_before_they_expire(server: ApiServer, cluster: ApiClient) -> None:
    """A token that has been replaced in the file is used for the next request: nothing is ever refused."""
    async with following(server, cluster) as seen:
        await seen.right()
        for start in (100, 200):
            server.rotate_token()
            server.faults.add(Fault(EndWatch(), verb="watch", count=len(PLURALS)))
            change(server, start=start)
            await seen.right()
    assert {request.status for request in server.requests()} == {200}
    assert len({request.headers["authorization"] for request in server.requests()}) == 3


async def test_expired_token(server: ApiServer, cluster: ApiClient) -> None:
    """Without a valid token in the file requests are denied, with pauses.  With a new token they continue."""
    async with following(server, cluster) as seen:
        await seen.right()
        server.rotate_token(publish=False)
        server.faults.add(Fault(EndWatch(), verb="watch", resource="services"))
        change(server)
        await seen.until(lambda: seen.requests(status=401) >= 4)
        server.publish_token()
        await seen.right()
        for plural in PLURALS - {"services"}:
            assert seen.requests(resource=plural) == 2, "others run on"


async def test_a_denied_token_names_its_file(
    server: ApiServer, cluster: ApiClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning about a 401 says which file has the token, and how old it is, which a stale copy shows."""
    server.rotate_token(publish=False)
    kubeconfig = tmp_path / "kubeconfig"
    for hours, age in ((0, "less than an hour ago"), (3, "3 h ago"), (50, "2 days ago")):
        written = time.time() - hours * 3600
        os.utime(kubeconfig, (0, written))
        text = f"{kubeconfig} was written at {datetime.fromtimestamp(written, UTC):%Y-%m-%d %H:%M} UTC, {age}"
        async with following(server, cluster, [RESOURCES[2]]) as seen:
            await seen.until(lambda text=text: text in caplog.text)  # type: ignore[misc]
            await seen.until(lambda text=text: text in cluster.activities["services"].problem)  # type: ignore[misc]


async def test_a_denied_token_is_logged_once(
    server: ApiServer, cluster: ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    """While the server denies all requests, the log says so once a minute for all resources, and again after a cure."""
    server.rotate_token(publish=False)
    async with following(server, cluster) as seen:
        await seen.until(lambda: all(seen.requests(status=401, resource=each) >= 3 for each in PLURALS))
        assert caplog.text.count("401 Unauthorized") == 1
        server.publish_token()
        await seen.right()
        server.rotate_token(publish=False)
        server.faults.add(Fault(EndWatch(), verb="watch", count=len(PLURALS)))
        await seen.until(lambda: caplog.text.count("401 Unauthorized") == 2)


async def test_new_credentials_end_the_pause_after_a_denial(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new token in the file is used at once, although pauses after denials grow long."""
    monkeypatch.setattr(api_client, "LOOK", 0.05)
    cluster = reach(server, tmp_path, times=ReflectorTimes(first_error=600.0, longest_error=600.0))
    server.rotate_token(publish=False)
    async with following(server, cluster) as seen:
        await seen.until(lambda: all(seen.requests(status=401, resource=each) == 1 for each in PLURALS))
        server.publish_token()
        await seen.right()


@pytest.mark.parametrize("name", ["token", "client.crt", "client.key", "ca.crt"])
async def test_an_empty_file_is_not_used(
    server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """While a file is empty, as when it is written anew, the last credentials serve, and nothing asks anonymously."""
    proof = Proof.TOKEN if name == "token" else Proof.CERTIFICATE
    config = server.write_kubeconfig(tmp_path / "kubeconfig", proof=proof, embed=False)
    file = tmp_path / name
    if proof is Proof.TOKEN:
        file.write_text(server.token)
        rewrite(config, user={"token": None, "tokenFile": name})
    cluster = ApiClient(str(config), times=TIMES)
    file.write_text("\n")
    async with following(server, cluster) as seen:
        await seen.right()
    assert {request.status for request in server.requests()} == {200}
    assert f"keeping the current credentials: NFT106: {file}: is empty" in caplog.text
    with pytest.raises(BadInput, match="is empty"):
        ApiClient(str(config))


async def test_single_requests_share_a_connection(server: ApiServer, cluster: ApiClient) -> None:
    """Requests that several tasks make at once follow each other on the same connection."""
    await asyncio.gather(*(cluster.read_node(NODE) for _ in range(5)), cluster.send_event("shop", {}))
    await cluster.aclose()
    assert len(server.requests()) == 6
    assert len({request.port for request in server.requests()}) == 1


async def test_in_a_pod(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pod the service account's token is used, and read anew when kubelet has replaced it."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    account = server.write_service_account(tmp_path)
    cluster = ApiClient(account=account, times=TIMES)
    async with following(server, cluster) as seen:
        await seen.right()
        server.rotate_token()
        server.faults.add(Fault(EndWatch(), verb="watch", count=len(PLURALS)))
        change(server)
        await seen.right()
    assert {request.status for request in server.requests()} == {200}


def test_a_directory_alone_is_no_pod(server: ApiServer, tmp_path: Path) -> None:
    """A pod has a token and the server's address.  A node may have the empty directory, and this was an error."""
    assert not is_in_pod(tmp_path, server.environment)
    server.write_service_account(tmp_path)
    assert is_in_pod(tmp_path, server.environment)
    assert not is_in_pod(tmp_path, {})


def rewrite(path: Path, **tweaks: Object) -> Path:
    """Change the cluster and the user in a kubeconfig."""
    config = yaml.safe_load(path.read_text())
    for section, values in tweaks.items():
        inner = config[f"{section}s"][0][section]
        for name, value in values.items():
            inner[name.replace("_", "-")] = value
        config[f"{section}s"][0][section] = {name: value for name, value in inner.items() if value is not None}
    path.write_text(yaml.safe_dump(config))
    return path


async def reads(server: ApiServer, config: Path, **more: Any) -> None:
    """Follow a cluster by a kubeconfig until all is known."""
    cluster = ApiClient(str(config), **{"times": TIMES} | more)
    async with following(server, cluster) as seen:
        await seen.right()


@pytest.mark.parametrize(("scheme", "loads"), [("http", 0), ("https", 1)])
async def test_public_authorities(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, loads: int
) -> None:
    """Without an authority in the kubeconfig, all connections read the public ones once, and without TLS never."""
    loaded: list[str] = []
    made = tls.system_authorities

    def counted() -> ssl.SSLContext:
        loaded.append("")
        return made()

    monkeypatch.setattr(tls, "system_authorities", functools.cache(counted))
    made.cache_clear()
    kubeconfig = yaml.safe_load(server.write_kubeconfig(tmp_path / "kubeconfig").read_text())
    kubeconfig["clusters"][0]["cluster"] = {"server": f"{scheme}://127.0.0.1:{server.port}"}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    for _ in range(5):
        cluster = ApiClient(str(tmp_path / "kubeconfig"), times=TIMES)
        with pytest.raises(Unavailable):  # this server's authority isn't public, and it doesn't speak plain HTTP
            await cluster.read_node(NODE)
        await cluster.aclose()
    assert len(loaded) == loads


async def test_token_file(server: ApiServer, tmp_path: Path) -> None:
    """A kubeconfig may name a file with a token, relative to itself, which goes before a token and may end a line."""
    (tmp_path / "token").write_text(f"{server.token}\n")
    config = server.write_kubeconfig(tmp_path / "kubeconfig", embed=False)
    await reads(server, rewrite(config, user={"token": "old", "tokenFile": "token"}))
    assert {request.status for request in server.requests()} == {200}


@pytest.mark.parametrize("embed", [True, False])
async def test_certificates(server: ApiServer, tmp_path: Path, embed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client certificate may stand in the kubeconfig or beside it, and no key is left behind in any file."""
    left = tmp_path / "left"
    left.mkdir()
    monkeypatch.setenv("HOME", str(left))
    monkeypatch.setattr("tempfile.tempdir", str(left))
    await reads(server, server.write_kubeconfig(tmp_path / "kubeconfig", proof=Proof.CERTIFICATE, embed=embed))
    assert {request.user for request in server.requests()} == {"kubernetes-admin"}
    assert list(left.iterdir()) == []


V1 = "client.authentication.k8s.io/v1"


async def test_plugin(server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A program may be asked for the token, again when the API denies it, and again when the program has failed."""
    (tmp_path / "token").write_text(server.token)
    code = (
        'import sys; print(\'{"apiVersion": "%s", "kind": "ExecCredential", "status": {"token": "%s"}}\''
        " % (sys.argv[1], open(sys.argv[2]).read()))"
    )
    plugin = {"apiVersion": V1, "command": "python3", "args": ["-c", code, V1, str(tmp_path / "token")]}
    config = rewrite(server.write_kubeconfig(tmp_path / "kubeconfig"), user={"token": None, "exec": plugin})
    cluster = ApiClient(str(config), times=TIMES, patience=Timeouts(plugin_again=0.1))
    async with following(server, cluster, [RESOURCES[2]]) as seen:
        await seen.until(lambda: server.watches("services") == 1)
        token = server.rotate_token(publish=False)
        server.faults.add(Fault(EndWatch(), verb="watch"))
        await seen.until(lambda: "401 Unauthorized: 'Unauthorized': by the credential plugin 'python3'" in caplog.text)
        (tmp_path / "token").unlink()
        await seen.until(lambda: "the credential plugin 'python3' failed: it ended with status 1" in caplog.text)
        (tmp_path / "token").write_text(token)
        server.put(service(9))
        await seen.until(lambda: server.watches("services") == 1 and len(seen.state.services) == 6)


async def test_plugin_gives_a_certificate(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificate and key may come from a single run of a program beside the kubeconfig, for all requests."""
    left = tmp_path / "left"
    left.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(left))
    assert server.authority is not None
    certificate, key = (text.decode() for text in server.authority.client)
    status = {"clientCertificateData": certificate, "clientKeyData": key}
    (tmp_path / "answer").write_text(json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status}))
    (tmp_path / "plugin").write_text(f"#!/bin/sh\necho >> {tmp_path}/runs\ncat {tmp_path}/answer\n")
    (tmp_path / "plugin").chmod(0o755)
    config = server.write_kubeconfig(tmp_path / "kubeconfig")
    rewrite(config, user={"token": None, "exec": {"apiVersion": V1, "command": "./plugin"}})
    cluster = ApiClient(str(config), times=TIMES)
    async with following(server, cluster) as seen:
        await seen.right()
        for _ in range(3):
            await cluster.send_event("default", {})
    await cluster.aclose()
    assert {request.user for request in server.requests()} == {"kubernetes-admin"}
    assert (tmp_path / "runs").read_text() == "\n"
    assert list(left.iterdir()) == [], "a key was left behind"


async def test_a_plugin_that_is_missing_is_named(server: ApiServer, tmp_path: Path) -> None:
    """The reason of a failure names the program beside the system's words."""
    config = server.write_kubeconfig(tmp_path / "kubeconfig")
    rewrite(config, user={"token": None, "exec": {"apiVersion": V1, "command": "./plugin"}})
    failure = f"the credential plugin '{tmp_path.parent}/.* failed: .*No such file or directory: '{tmp_path}/plugin'"
    with pytest.raises(Unavailable, match=failure):
        await ApiClient(str(config)).read_node(NODE)


@pytest.mark.parametrize(
    ("tweak", "complaint"),
    [
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "v1alpha1"),
        ({"interactiveMode": "Always"}, "Always"),
        ({"command": None}, "command"),
    ],
)
def test_bad_plugins(server: ApiServer, tmp_path: Path, tweak: Object, complaint: str) -> None:
    """A plugin that wants a terminal, or speaks no version that there still is, is bad input at the start."""
    plugin = {"apiVersion": V1, "command": "x"} | tweak
    config = server.write_kubeconfig(tmp_path / "kubeconfig")
    rewrite(config, user={"token": None, "exec": {name: value for name, value in plugin.items() if value}})
    with pytest.raises(BadInput, match=complaint):
        ApiClient(str(config))


async def test_broken_kubeconfig(server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A kubeconfig that breaks while it is used is reported once, and its last contents still count."""
    cluster = reach(server, tmp_path)
    (tmp_path / "kubeconfig").write_text("clusters: [")
    async with following(server, cluster) as seen:
        await seen.right()
    assert caplog.text.count("keeping the current credentials") == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no current-context"),
        ("clusters: [", "is not YAML"),
        ("a: 1", "has no current-context"),
        (
            "{current-context: x, contexts: [{name: x, context: {user: a}}]}",
            "leads to '', which isn't among the clusters",
        ),
        ("{clusters: [], contexts: [], users: [], current-context: 7}", r"\$.current-context"),
        ("{clusters: [], contexts: [], users: [], current-context: x}", "current-context: leads to 'x'"),
    ],
)
def test_bad_kubeconfigs(tmp_path: Path, text: str, complaint: str) -> None:
    """A kubeconfig that is wrong when the agent starts is bad input, with its fault."""
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(BadInput, match=complaint):
        ApiClient(str(path))


@pytest.mark.parametrize(
    ("cluster", "user", "complaint"),
    [
        ({"certificate_authority_data": "?"}, {}, "not base64"),
        ({"certificate_authority_data": None, "certificate_authority": "nowhere"}, {}, "No such file"),
        ({"server": None}, {}, "missing required field `server`"),
        ({"server": "https://[::1"}, {}, "server: is not an http or https URL"),
        ({"server": "https://a:b"}, {}, "server: is not"),
        ({"server": "https://a:65536"}, {}, "server: is not"),
        ({"server": "127.0.0.1:6443"}, {}, "server: is not"),
        ({"proxy_url": "http://[::1"}, {}, "proxy-url: is not"),
        ({"proxy_url": "socks4://a"}, {}, "proxy-url: is not"),
        ({}, {"token": None, "tokenFile": "nowhere"}, "No such file"),
        ({"certificate_authority_data": "ü"}, {}, "not base64"),
        ({"insecure_skip_tls_verify": True}, {}, "excludes a certificate-authority"),
        ({}, {"token": None, "tokenFile": "empty"}, "empty: is empty"),
        ({}, {"auth_provider": {"name": "oidc"}}, "auth-provider isn't supported"),
        ({}, {"username": "a", "password": "b"}, "a token excludes a username"),
        ({}, {"client_certificate_data": "YQ=="}, "a client certificate has no client-key"),
        ({}, {"as_groups": ["a"]}, "need the user in as"),
    ],
)
def test_bad_credentials(server: ApiServer, tmp_path: Path, cluster: Object, user: Object, complaint: str) -> None:
    """So are credentials that aren't there, or aren't any."""
    config = rewrite(server.write_kubeconfig(tmp_path / "kubeconfig"), cluster=cluster, user=user)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(BadInput, match=complaint):
        ApiClient(str(config))


async def test_what_client_go_takes(server: ApiServer, tmp_path: Path) -> None:
    """Base64 in lines, an empty user name, and parts that aren't used and are incomplete, break nothing."""
    config = server.write_kubeconfig(tmp_path / "kubeconfig")
    written = yaml.safe_load(config.read_text())
    cluster = written["clusters"][0]["cluster"]
    data = cluster["certificate-authority-data"]
    cluster["certificate-authority-data"] = "\n".join(data[at : at + 64] for at in range(0, len(data), 64)) + "\r\n"
    written["users"][0]["user"]["username"] = ""
    written["users"] += [
        {"name": "old", "user": {"exec": {"apiVersion": "v1alpha1"}}},
        {"name": "nobody", "user": None},
    ]
    written["clusters"].append({"name": "empty", "cluster": None})
    written["contexts"] += [{"name": "unused", "context": {"user": "old"}}, {"name": "none", "context": None}]
    config.write_text(yaml.safe_dump(written))
    await reads(server, config)
    assert {request.status for request in server.requests()} == {200}


async def test_a_client_certificate_without_an_authority(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a client certificate and no authority, the system's authorities verify the server."""
    assert server.authority is not None
    config = server.write_kubeconfig(tmp_path / "kubeconfig", proof=Proof.CERTIFICATE)
    rewrite(config, cluster={"certificate_authority_data": None})
    with pytest.raises(Unavailable, match="certificate verify failed"):
        await ApiClient(str(config)).read_node(NODE)
    (tmp_path / "ca.crt").write_bytes(server.authority.certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
    await reads(server, config)
    assert {request.user for request in server.requests()} == {"kubernetes-admin"}


async def test_no_token_goes_without_tls(tmp_path: Path) -> None:
    """As with client-go, a server by plain HTTP gets no token, and its denial says why."""
    with ApiServer() as server:
        config = server.write_kubeconfig(tmp_path / "kubeconfig")
        server.faults.add(Fault(Respond(401)))
        with pytest.raises(Unavailable, match=r"401 Unauthorized.*: no credentials are sent without TLS"):
            await ApiClient(str(config)).read_node(NODE)
    assert ["authorization" in request.headers for request in server.requests()] == [False]


async def test_acting_as_another_user(server: ApiServer, tmp_path: Path) -> None:
    """A kubeconfig's `as` is the header of each request, of lists and watches too."""
    config = server.write_kubeconfig(tmp_path / "kubeconfig")
    await reads(server, rewrite(config, user={"as": "jane"}))
    assert {request.headers["impersonate-user"] for request in server.requests()} == {"jane"}


def test_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a pod and without a kubeconfig, the missing setting is named."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(BadInput, match=r"clientConnection\.kubeconfig"):
        ApiClient(account=tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(BadInput, match="token: No such file"):
        ApiClient(account=tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "tcp")
    with pytest.raises(BadInput, match="KUBERNETES_SERVICE_HOST and _PORT: is not"):
        ApiClient(account=tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    for name in ("ca.crt", "token"):
        (tmp_path / name).write_text("text\n")
    assert read_credentials("", tmp_path) == Credentials(
        "https://[fd00::1]:443", b"text\n", "text", file=str(tmp_path / "token")
    )


# ---- addresses -----------------------------------------------------------------------------------------------------


async def test_a_cold_node(server: ApiServer, tmp_path: Path) -> None:
    """If no server answers at the configured address, another address is used, and kept."""
    config = rewrite(
        server.write_kubeconfig(tmp_path / "kubeconfig"), cluster={"server": f"https://127.0.0.9:{server.port}"}
    )
    await reads(server, config, api_servers=[f"https://127.0.0.8:{server.port}", server.url])
    assert {request.status for request in server.requests()} == {200}


async def test_fails_over(tmp_path: Path) -> None:
    """An address that fails is replaced by the next, and after the last address comes the first."""
    with ApiServer(tls=True, authenticate=True, hosts=("127.0.0.1", "127.0.0.2")) as server:
        server.settings.bookmark_interval = BOOKMARKS
        other = f"https://127.0.0.2:{server.port}"
        cluster = reach(server, tmp_path, api_servers=[other])
        async with following(server, cluster) as seen:
            await seen.right()
            assert cluster.address == server.url
            server.faults.add(Fault(Respond(503), verb="watch", resource="nodes"))
            server.faults.add(Fault(EndWatch(), verb="watch", resource="nodes"))
            await seen.until(lambda: cluster.address == other)
            await seen.right()
            assert seen.requests(verb="watch") == len(PLURALS) + 2, "only one had to move"
            server.stop()
            await asyncio.sleep(0.1)
            server.start()
            change(server)
            await seen.right()


async def test_strangers_get_no_token(server: ApiServer, tmp_path: Path) -> None:
    """An address with a certificate from elsewhere, or for another name, is not talked to."""
    with ApiServer(tls=True) as stranger:
        config = server.write_kubeconfig(tmp_path / "kubeconfig", url=stranger.url)
        await reads(server, config, api_servers=[server.url])
    assert stranger.requests() == []


async def test_server_names(server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The certificate must be for the kubeconfig's tls-server-name, at any address."""
    config = server.write_kubeconfig(tmp_path / "kubeconfig")
    await reads(server, rewrite(config, cluster={"tls_server_name": "localhost"}))
    server.clear_requests()
    cluster = ApiClient(
        str(rewrite(config, cluster={"tls_server_name": "example.test"})),
        times=ReflectorTimes(first_attempt=60.0, longest_attempt=60.0),
    )
    async with following(server, cluster, [RESOURCES[2]]) as seen:
        await seen.until(lambda: "certificate is not valid for 'example.test'" in caplog.text)
    assert server.requests() == []


@pytest.mark.parametrize("url", ["http://127.0.0.1", "127.0.0.1:6443", "https://", "https://[::1", "https://a:b", ""])
def test_bad_addresses(server: ApiServer, tmp_path: Path, url: str) -> None:
    """Another address must be a URL that is as safe as the first."""
    with pytest.raises(BadInput, match=r"--api-server: .* is not a URL like https://127\.0\.0\.1"):
        reach(server, tmp_path, api_servers=[url])
