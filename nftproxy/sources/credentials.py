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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from nftproxy.api.decode import show
from nftproxy.model.addresses import host_port
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.sources.documents import yaml_documents
from nftproxy.sources.plugins import Plugin
from nftproxy.sources.proxies import KUBECONFIG, parse_proxy
from nftproxy.sources.reading import LARGEST_CONFIG, read_bounded

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod has its token and the cluster's certificate authority."""


class Impersonation(msgspec.Struct, frozen=True):
    """The user that the API is to take the request for (`kubectl --as`)."""

    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()  # keys and values, a key perhaps several times


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
    impersonation: Impersonation = Impersonation()
    file: str = ""
    """The file with the token or the client certificate, "" without one."""
    program: str = ""
    """The plugin that has printed the token or the client certificate, "" if a file has it."""


def read_credentials(kubeconfig: str, account: Path = SERVICE_ACCOUNT) -> Credentials:
    """Read the credentials in a kubeconfig.  If its path is "", read a pod's credentials, as kube-proxy does.

    Raises:
        BadInput: files are missing, or wrong.
    """
    return _of_kubeconfigs([Path(kubeconfig)]) if kubeconfig else _of_pod(account, os.environ)


def kubectl_credentials(kubeconfig: str, context: str, account: Path = SERVICE_ACCOUNT) -> Credentials:
    """Read the credentials that kubectl would use: of a kubeconfig, of KUBECONFIG, of ~/.kube/config, or of a pod.

    KUBECONFIG may have several paths.  As with kubectl, files that don't exist are skipped, and the first file that has
    a part of a name counts.

    Args:
        kubeconfig: a path, "" for the others.
        context: the context's name, "" for the current context.
        account: the directory of a pod's service account.

    Raises:
        BadInput: files are wrong, or there are none.
    """
    if kubeconfig:
        return _of_kubeconfigs([Path(kubeconfig)], context)
    named = os.environ.get("KUBECONFIG", "")
    texts = named.split(os.pathsep) if named else [str(Path("~/.kube/config").expanduser())]
    found = [path for path in map(Path, filter(None, texts)) if path.exists()]
    if not found and (named or not is_in_pod(account)):
        raise _unusable(named or "~/.kube/config", "there is no such kubeconfig, and this isn't a pod")
    return _of_kubeconfigs(found, context) if found else _of_pod(account, os.environ)


def is_in_pod(account: Path = SERVICE_ACCOUNT, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a pod's credentials are here (client-go, tools/clientcmd, inClusterClientConfig.Possible).

    The directory alone says nothing: a pod that mounts the node's /var/run leaves it on the node.
    """
    given = environ.get("KUBERNETES_SERVICE_HOST") and environ.get("KUBERNETES_SERVICE_PORT")
    return bool(given) and (account / "token").is_file()


def _of_pod(account: Path, environ: Mapping[str, str]) -> Credentials:
    """Read a pod's credentials as client-go's rest.InClusterConfig does."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        message = "is not given, and without KUBERNETES_SERVICE_HOST and _PORT this isn't a pod either"
        raise _unusable("", message, field="clientConnection.kubeconfig")
    return Credentials(
        server=_url(f"https://{host_port(host, port)}", "", "KUBERNETES_SERVICE_HOST and _PORT"),
        authority=_filled(account / "ca.crt"),
        token=_token(account / "token"),
        file=str(account / "token"),
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
    """Return the URL of a server.

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
    user: str | None = msgspec.field(name="as", default=None)
    uid: str | None = msgspec.field(name="as-uid", default=None)
    groups: tuple[str, ...] | None = msgspec.field(name="as-groups", default=None)
    extra: dict[str, list[str]] | None = msgspec.field(name="as-user-extra", default=None)

    @property
    def impersonation(self) -> Impersonation:
        """The user that the API is to take requests for."""
        extra = tuple((key, value) for key, values in (self.extra or {}).items() for value in values)
        return Impersonation(self.user or "", self.uid or "", self.groups or (), extra)


class _Context(_Section):
    cluster: str
    user: str = ""


class _NamedPart(_Section):
    """A named part.  It is only judged if the current context leads to it."""

    name: str
    cluster: object = None
    context: object = None
    user: object = None

    @property
    def value(self) -> object:
        """The cluster, context or user."""
        return self.cluster or self.context or self.user


class _Kubeconfig(_Section):
    current_context: str | None = None
    clusters: list[_NamedPart] | None = None
    contexts: list[_NamedPart] | None = None
    users: list[_NamedPart] | None = None

    def parts(self, section: str) -> list[_NamedPart]:
        """The parts of a section, last first, so that the first part of a name wins in a dict."""
        found: list[_NamedPart] | None = getattr(self, section)
        return (found or [])[::-1]


S = TypeVar("S", bound=_Section)


class _PartOfFile(NamedTuple):
    """A part of a kubeconfig, and the file that has it."""

    path: Path
    value: object


def _of_kubeconfigs(paths: Sequence[Path], context: str = "") -> Credentials:
    files = [(path, _kubeconfig(path)) for path in paths]
    first = files[0][0]

    def part(kind: type[S], section: str, name: str) -> tuple[Path, S]:
        parts = {
            each.name: _PartOfFile(path, each.value) for path, file in reversed(files) for each in file.parts(section)
        }
        return _part(first, kind, section, parts, name)

    wanted = context or next((file.current_context for _, file in files if file.current_context), None)
    if wanted is None:
        raise _unusable(first, "has no current-context, and none is named", field="current-context")
    _, chosen = part(_Context, "contexts", wanted)
    cluster_path, cluster = part(_Cluster, "clusters", chosen.cluster)
    path, user = part(_User, "users", chosen.user) if chosen.user else (cluster_path, _User())
    if user.auth_provider is not None or user.username:
        message = "auth-provider and username are gone from Kubernetes: use a token, certificate or exec"
        raise _unusable(path, message, field="users")
    return Credentials(
        server=_url(cluster.server, cluster_path, "server").rstrip("/"),
        authority=_pem(cluster_path, cluster.certificate_authority, cluster.certificate_authority_data),
        token=_token(path.parent / user.token_file) if user.token_file else (user.token or "").strip(),
        certificate=_pem(path, user.client_certificate, user.client_certificate_data),
        key=_pem(path, user.client_key, user.client_key_data),
        tls_server_name=cluster.tls_server_name or "",
        is_insecure=bool(cluster.insecure_skip_tls_verify),
        proxy_url=_proxy_url(cluster_path, cluster.proxy_url or ""),
        plugin=_found_from(path.parent, user.exec),
        impersonation=user.impersonation,
        file=str(path.parent / (user.token_file or ("" if user.token else user.client_certificate) or path.name)),
    )


def _part(first: Path, kind: type[S], section: str, parts: Mapping[str, _PartOfFile], name: str) -> tuple[Path, S]:
    """Return the part of a name, and its file.  Parts that aren't used may be incomplete."""
    if name not in parts:
        raise _unusable(first, f"leads to {show(name)}, which isn't among the {section}", field="current-context")
    path, value = parts[name]
    try:
        return path, msgspec.convert(value or {}, kind)
    except ValueError as error:
        raise _unusable(path, f"{show(name)}: {error}", field=section) from error


def _proxy_url(path: Path, text: str) -> str:
    try:
        if text:
            parse_proxy(text, KUBECONFIG)
    except ValueError as error:
        raise _unusable(path, str(error), field="proxy-url") from error
    return text


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
        lines = (data or "").replace("\n", "").replace("\r", "")  # Go skips these two, and nothing else
        return base64.b64decode(lines, validate=True) if lines else _filled(path.parent / file) if file else b""
    except binascii.Error as error:
        raise _unusable(path, f"a certificate or key is not base64: {error}", "kubeconfig") from error


def _token(path: Path) -> str:
    try:
        return _filled(path).decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise _unusable(path, "is not a token") from error


def _filled(path: Path) -> bytes:
    """Read a file that a program may be about to write anew.

    An empty token or client certificate would make anonymous requests, and an empty authority trust the system's.
    """
    content = _read(path)
    if not content.strip():
        raise _unusable(path, "is empty")
    return content


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, LARGEST_CONFIG)
    except (OSError, ValueError) as error:  # ValueError: NUL in a name
        raise _unusable(path, getattr(error, "strerror", None) or str(error)) from error


def _unusable(path: Path | str, message: str, what: str = "", *, field: str = "") -> BadInput:
    return BadInput(Problem(str(path), what, field, message, Code.CREDENTIALS_UNUSABLE))
