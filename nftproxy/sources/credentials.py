"""The credentials for the API, and its URL: from a kubeconfig, or from a pod's service account.

Files are read as a whole each time, so a value is complete: if two values are equal, nothing has been rotated.  kubelet
replaces a pod's token after 80 % of its life, and its own client certificate long before the end.  A client that reads
anew before each request always has a valid token.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from nftproxy.api.decode import show
from nftproxy.model.addresses import host_port
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.sources.documents import yaml_documents
from nftproxy.sources.plugins import Plugin
from nftproxy.sources.reading import LARGEST_CONFIG, read_bounded

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod has its token and the cluster's certificate authority."""


class Credentials(msgspec.Struct, frozen=True):
    """The server's URL, and all that a connection to it takes.  Certificates and keys are PEM, b"" if absent."""

    server: str
    authority: bytes = b""
    token: str = ""
    certificate: bytes = b""
    key: bytes = b""
    tls_server_name: str = ""  # the name in the server's certificate, "" for the host in the URL
    is_insecure: bool = False
    proxy_url: str = ""
    plugin: Plugin | None = None  # the user's exec section: a program that prints credentials

    @property
    def has_default_authorities(self) -> bool:
        """Whether nothing says how to verify the server, so that public authorities do."""
        return not (self.authority or self.certificate or self.is_insecure)


def read_credentials(kubeconfig: str, account: Path = SERVICE_ACCOUNT) -> Credentials:
    """Read the credentials in a kubeconfig.  If its path is "", read a pod's credentials, as kube-proxy does.

    Raises:
        BadInput: files are missing, or wrong.
    """
    return _of_kubeconfig(Path(kubeconfig)) if kubeconfig else _of_pod(account, os.environ)


def _of_pod(account: Path, environ: Mapping[str, str]) -> Credentials:
    """Read a pod's credentials as client-go's rest.InClusterConfig does."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        message = "is not given, and without KUBERNETES_SERVICE_HOST and _PORT this isn't a pod either"
        raise _unusable("", message, field="clientConnection.kubeconfig")
    return Credentials(
        server=_url(f"https://{host_port(host, port)}", "", "KUBERNETES_SERVICE_HOST and _PORT"),
        authority=_read(account / "ca.crt"),
        token=_token(account / "token"),
    )


def other_address(text: str, configured: str) -> str:
    """Parse the URL of another address.  It must be as safe as the configured URL, as it gets the same token.

    Raises:
        BadInput: it is less safe, or no URL.
    """
    if _scheme(text) == _scheme(configured):
        return text.rstrip("/")
    raise _unusable("", f"{show(text)} is not a URL like {configured}", field="--api-server")


def _url(text: str, path: Path | str, field: str) -> str:
    """Return the URL of a server or a proxy.

    Raises:
        BadInput: it is no URL.  The error doesn't show the text, which may have a password.
    """
    if not _scheme(text):
        raise _unusable(path, "is not an http or https URL with a host and a valid port", field=field)
    return text


def _scheme(url: str) -> str:
    """Return the scheme of a server's URL, "" if the text is no such URL."""
    with contextlib.suppress(ValueError):  # raised for bad brackets and ports
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts.scheme
    return ""


def kubeconfig_of(credentials: Credentials, address: str, files: contextlib.ExitStack) -> dict[str, Any]:
    """Return the credentials as a kubeconfig, for another address of the same server, without a plugin.

    Certificates and keys are in files in memory, which exist until `files` is closed.
    """

    def given(**values: Any) -> dict[str, Any]:
        paths = {
            name: _in_memory(value, files) if isinstance(value, bytes) else value for name, value in values.items()
        }
        return {name.replace("_", "-"): value for name, value in paths.items() if value}

    cluster = given(
        server=address,
        certificate_authority=credentials.authority,
        tls_server_name=credentials.tls_server_name,
        insecure_skip_tls_verify=credentials.is_insecure,
        proxy_url=credentials.proxy_url,
    )
    user = given(
        token=credentials.token,
        client_certificate=credentials.certificate,
        client_key=credentials.key,
    )
    return {
        "clusters": [{"name": "cluster", "cluster": cluster}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": "user"}}],
        "current-context": "context",
    }


def _in_memory(content: bytes, files: contextlib.ExitStack) -> str:
    """Return the path of a file in memory, "" for no content."""
    if not content:
        return ""
    file = files.enter_context(os.fdopen(os.memfd_create("nftproxy"), "wb", buffering=0))
    file.write(content)
    return f"/proc/self/fd/{file.fileno()}"


# The shapes of a kubeconfig (client-go, tools/clientcmd/api/v1)


class _Section(msgspec.Struct, rename="kebab"):
    pass


class _Cluster(_Section):
    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    tls_server_name: str | None = None
    insecure_skip_tls_verify: bool | None = None
    proxy_url: str | None = None


class _User(_Section):
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    exec: Plugin | None = None
    auth_provider: object = None
    username: str | None = None


class _Context(_Section):
    cluster: str
    user: str


class _NamedCluster(_Section):
    name: str
    cluster: _Cluster


class _NamedUser(_Section):
    name: str
    user: _User


class _NamedContext(_Section):
    name: str
    context: _Context


class _Kubeconfig(_Section):
    clusters: list[_NamedCluster]
    contexts: list[_NamedContext]
    users: list[_NamedUser]
    current_context: str


def _of_kubeconfig(path: Path) -> Credentials:
    config = _kubeconfig(path)
    try:
        context = {each.name: each.context for each in config.contexts}[config.current_context]
        cluster = {each.name: each.cluster for each in config.clusters}[context.cluster]
        user = {each.name: each.user for each in config.users}[context.user]
    except KeyError as error:
        raise _unusable(path, f"leads to {error}, which isn't there", field="current-context") from error
    if user.auth_provider is not None or user.username is not None:
        message = "auth-provider and username are gone from Kubernetes: use a token, certificate or exec"
        raise _unusable(path, message, field="users")
    directory = path.parent
    return Credentials(
        server=_url(cluster.server, path, "server").rstrip("/"),
        authority=_pem(path, cluster.certificate_authority, cluster.certificate_authority_data),
        token=_token(directory / user.token_file) if user.token_file else (user.token or "").strip(),
        certificate=_pem(path, user.client_certificate, user.client_certificate_data),
        key=_pem(path, user.client_key, user.client_key_data),
        tls_server_name=cluster.tls_server_name or "",
        is_insecure=bool(cluster.insecure_skip_tls_verify),
        proxy_url=_url(cluster.proxy_url, path, "proxy-url") if cluster.proxy_url else "",
        plugin=_found_from(directory, user.exec),
    )


def _found_from(directory: Path, plugin: Plugin | None) -> Plugin | None:
    """Return the plugin with a command relative to the kubeconfig.  A command without a slash is found by PATH."""
    if plugin is None or "/" not in plugin.command:
        return plugin
    return msgspec.structs.replace(plugin, command=str(directory / plugin.command))


def _kubeconfig(path: Path) -> _Kubeconfig:
    try:
        documents = [each for each in yaml_documents(_read(path).decode()) if each.fault or each.value is not None]
        if len(documents) != 1 or documents[0].fault:
            raise ValueError(documents[0].fault if documents else "is empty")
        return msgspec.convert(documents[0].value, _Kubeconfig)
    except ValueError as error:  # also what msgspec raises, and UnicodeDecodeError
        raise _unusable(path, str(error), "kubeconfig") from error


def _pem(path: Path, file: str | None, data: str | None) -> bytes:
    """Return a certificate or key from text, or else from a file relative to the kubeconfig."""
    try:
        return base64.b64decode(data, validate=True) if data else _read(path.parent / file) if file else b""
    except binascii.Error as error:
        raise _unusable(path, f"a certificate or key is not base64: {error}", "kubeconfig") from error


def _token(path: Path) -> str:
    try:
        return _read(path).decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise _unusable(path, "is not a token") from error


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, LARGEST_CONFIG)
    except (OSError, ValueError) as error:  # ValueError: NUL in a name
        raise _unusable(path, getattr(error, "strerror", None) or str(error)) from error


def _unusable(path: Path | str, message: str, what: str = "", *, field: str = "") -> BadInput:
    return BadInput(Problem(str(path), what, field, message, Code.CREDENTIALS_UNUSABLE))
