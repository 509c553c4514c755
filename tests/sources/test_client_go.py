"""Kubeconfigs and NO_PROXY mean what they mean for client-go, whose answers are in client_go.toml."""

from __future__ import annotations

import base64
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import trustme

from nftproxy.model.errors import BadInput
from nftproxy.sources.context_namespace import context_namespace
from nftproxy.sources.credentials import kubectl_credentials, read_credentials
from nftproxy.sources.http_client import http_client
from nftproxy.sources.proxies import KUBECONFIG, Proxy, proxy_for

CASES = tomllib.loads((Path(__file__).parent / "client_go.toml").read_text())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files that the kubeconfigs name."""
    directory = tmp_path_factory.mktemp("client-go")
    authority = trustme.CA()
    client = authority.issue_cert("client.example")
    contents = {
        "ca.crt": authority.cert_pem.bytes(),
        "cert.pem": client.cert_chain_pems[0].bytes(),
        "key.pem": client.private_key_pem.bytes(),
        "token": b"filetoken\n",
        "empty": b"",
    }
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    return directory


def written(files: Path, case: dict[str, Any]) -> Path:
    """Write the kubeconfig of a case."""
    cluster = {"server": "https://10.0.0.9:6443", "certificate-authority-data": "CA1CA2"} | case.get("cluster", {})
    config = {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "tok"} | case.get("user", {})}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"} | case.get("context", {})}],
    } | case.get("top", {})
    authority = base64.b64encode((files / "ca.crt").read_bytes()).decode()
    text = case.get("text", json.dumps(config)).replace("CA1", authority[:64]).replace("CA2", authority[64:])
    (files / "kubeconfig").write_text(text)
    return files / "kubeconfig"


@pytest.mark.parametrize("case", CASES["kubeconfig"], ids=lambda case: str(case["case"]))
def test_kubeconfigs(files: Path, case: dict[str, Any]) -> None:
    """A kubeconfig leads to the URL, headers, certificates and proxy of client-go, or is refused as by client-go."""
    path = written(files, case)
    if case.get("refused"):
        with pytest.raises(BadInput, match=r"^NFT106: "):
            read_credentials(str(path))
        return
    found = read_credentials(str(path))
    proxy = proxy_for(found.server, found.proxy_url, {})
    assert found.server == case["url"]
    assert sorted(headers_of(str(path))) == case["headers"]
    assert (bool(found.authority), bool(found.certificate), found.is_insecure, proxy.url if proxy else "") == (
        case.get("authority", False),
        case.get("certificate", False),
        case.get("insecure", False),
        case.get("proxy", ""),
    )


def headers_of(path: str) -> list[list[str]]:
    """The headers of authentication and impersonation, which requests with a kubeconfig have."""
    credentials = read_credentials(path)
    headers = http_client(credentials, credentials.server, None).headers
    return [[name, value] for name, value in headers.multi_items() if name.startswith(("impersonate", "authorization"))]


@pytest.mark.parametrize(("entries", "around", "through"), CASES["no_proxy"])
def test_no_proxy(entries: str, around: str, through: str) -> None:
    """A list in NO_PROXY means the servers that it means for client-go."""
    environ = {"HTTPS_PROXY": "http://p", "NO_PROXY": entries}
    found = {host: proxy_for(f"https://{host}", "", environ) for host in f"{around} {through}".split()}
    assert [host for host, proxy in found.items() if proxy is None] == around.split()


def test_a_server_takes_a_user_and_password_from_its_url(files: Path) -> None:
    """Without a token, a user and password in the URL are for the header, and no other place shows them."""
    path = written(files, {"cluster": {"server": "https://us:p%40w@a:6443"}, "user": {"token": ""}})
    assert headers_of(str(path)) == [["authorization", f"Basic {base64.b64encode(b'us:p@w').decode()}"]]
    assert read_credentials(str(path)).server == "https://a:6443"


def test_several_files(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with kubectl, files of KUBECONFIG that have no content or don't exist are no fault."""
    path = written(files, {})
    (files / "comment").write_text("# nothing\n")
    monkeypatch.setenv("KUBECONFIG", f":{files}/empty:{files}/comment:{files}/nowhere:{path}")
    assert kubectl_credentials("", "").token == "tok"


def test_a_file_that_can_not_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of KUBECONFIG that isn't readable is an error with the system's reason."""
    monkeypatch.setenv("KUBECONFIG", "/proc/self/status/config")
    with pytest.raises(BadInput, match="/proc/self/status/config: Not a directory"):
        kubectl_credentials("", "")


def test_utf_16(files: Path) -> None:
    """A kubeconfig that PowerShell wrote is in UTF-16."""
    path = written(files, {})
    path.write_text(path.read_text(), encoding="utf-16")
    assert read_credentials(str(path)).token == "tok"


@pytest.mark.parametrize("token", ["a\nb", "a\0b", "a\x7fb"])
def test_a_token_that_is_no_header_is_not_shown(files: Path, token: str) -> None:
    """A token with a line break, as two tokens in a file, is an error that doesn't show it."""
    credentials = read_credentials(str(written(files, {"user": {"token": token}})))
    with pytest.raises(ConnectionError, match=r"^no credentials: the header authorization would have a line break"):
        http_client(credentials, credentials.server, None)


def test_a_plugin_knows_the_cluster(files: Path) -> None:
    """A plugin that asks for it knows the cluster as client-go describes it (rest/exec.go)."""
    exec_section = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "./plugin",
        "provideClusterInfo": True,
        "env": [{"name": "A", "value": None}, {"name": "B"}],
    }
    cluster = {
        "server": "https://a/x/",
        "tls-server-name": "b",
        "proxy-url": "http://p",
        "extensions": [
            {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "c"}},
            {"name": "other"},
        ],
    }
    path = written(files, {"cluster": cluster, "user": {"token": "", "exec": exec_section}})
    plugin = read_credentials(str(path)).plugin
    assert plugin
    assert plugin.command == str(files / "plugin")
    assert plugin.cluster == {
        "server": "https://a/x/",
        "tls-server-name": "b",
        "proxy-url": "http://p",
        "certificate-authority-data": base64.b64encode((files / "ca.crt").read_bytes()).decode(),
        "config": {"audience": "c"},
    }


@pytest.mark.parametrize("server", ["https://[v1.x]", "https://a\x7f", "https://\u0378", "https://[::1%]"])
def test_a_server_that_httpx_can_not_have(files: Path, server: str) -> None:
    """A server's URL that httpx would refuse at the connection is refused with the file's name."""
    with pytest.raises(BadInput, match="kubeconfig: server: is not an http or https URL"):
        read_credentials(str(written(files, {"cluster": {"server": server}})))


def test_a_server_and_a_proxy_with_other_letters(files: Path) -> None:
    """Names may have letters that DNS encodes, and a proxy's password any character."""
    path = written(
        files, {"cluster": {"server": "https://bücher.example", "proxy-url": "http://us:p%C3%A4ss@bücher:1"}}
    )
    credentials = read_credentials(str(path))
    assert credentials.server == "https://xn--bcher-kva.example"
    proxy = proxy_for(credentials.server, credentials.proxy_url, {})
    assert proxy == Proxy("http://xn--bcher-kva:1", KUBECONFIG, ("us", "päss"))
    assert http_client(credentials, credentials.server, proxy).base_url == "https://xn--bcher-kva.example"


def test_a_context_that_is_not_there(files: Path) -> None:
    """A context that isn't in the file is an error that names the setting which named it."""
    path = written(files, {"top": {"current-context": "nowhere"}})
    with pytest.raises(BadInput, match="kubeconfig: current-context: leads to 'nowhere'"):
        kubectl_credentials(str(path), "")
    with pytest.raises(BadInput, match="kubeconfig: --context: leads to 'z'"):
        kubectl_credentials(str(path), "z")


@pytest.mark.parametrize(
    "text", ["contexts: 7", "contexts: {a: 1}", "- a", "contexts: [7, null, {name: x, context: 7}]"]
)
def test_the_namespace_of_no_context(files: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A file that is no kubeconfig has no namespace, and no kubeconfig is found by an empty KUBECONFIG."""
    (files / "kubeconfig").write_text(f"{text}\n")
    assert context_namespace(files / "kubeconfig", "x") == "default"
    (files / ".kube").mkdir(exist_ok=True)
    (files / ".kube" / "config").write_text(
        "{current-context: a, contexts: [null, {name: a, context: {namespace: b}}]}"
    )
    monkeypatch.setenv("HOME", str(files))
    monkeypatch.setenv("KUBECONFIG", "")
    assert context_namespace() == "b"
