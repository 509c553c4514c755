"""The credentials for the API, and its URL: from a kubeconfig, or from a pod's service account.

Files are read as a whole each time, so a value is complete: if two values are equal, nothing has been rotated.  kubelet
replaces a pod's token after 80 % of its life, and its own client certificate long before the end.  A client that reads
anew before each request always has a valid token.

A kubeconfig means the same as for client-go (tests/sources/client_go.toml has client-go's answers), except:

* To a server without "https://" before it client-go connects by HTTP, without credentials.  If the context's user isn't
  in the file, it sends no credentials either.  Without a context it connects to localhost:8080, or as a pod.  Here each
  of these is an error that names the fault.
* auth-provider is an error, as in kube-proxy.  kubectl still has "oidc".
* client-go judges parts to which the current context doesn't lead.  It refuses names that are given twice, of which the
  first counts here, and a file beside data, of which the data counts here.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

import msgspec

from nftproxy.api.decode import show
from nftproxy.model.addresses import host_port
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.sources.kubeconfig import (
    ClusterSection,
    ContextSection,
    Kubeconfig,
    Section,
    UserSection,
    parse_kubeconfig,
)
from nftproxy.sources.plugins import EXEC_EXTENSION, Plugin
from nftproxy.sources.proxies import KUBECONFIG, ascii_name, parse_proxy
from nftproxy.sources.reading import LARGEST_CONFIG, read_bounded

_ZONE = re.compile("%25.+")
"""The zone of an address in a URL (RFC 6874), as net/url takes it."""
_NOT_IN_URLS = re.compile(r"[\s\x00-\x1f\x7f]")
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
    basic: str = ""  # a user and password, joined by a colon
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
    a part of a name counts.  Unlike with kubectl, a KUBECONFIG without any file is an error in a pod too.

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
    texts = named.split(os.pathsep) if named else [_home_kubeconfig()]
    found = [path for path in map(Path, filter(None, texts)) if _is_there(path)]
    if not found and (named or not is_in_pod(account)):
        raise _unusable(named or "~/.kube/config", "there is no such kubeconfig, and this isn't a pod")
    return _of_kubeconfigs(found, context) if found else _of_pod(account, os.environ)


def is_in_pod(account: Path = SERVICE_ACCOUNT, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a pod's credentials are here (client-go, tools/clientcmd, inClusterClientConfig.Possible).

    The directory alone says nothing: a pod that mounts the node's /var/run leaves it on the node.
    """
    given = environ.get("KUBERNETES_SERVICE_HOST") and environ.get("KUBERNETES_SERVICE_PORT")
    return bool(given) and (account / "token").is_file()


def _home_kubeconfig() -> str:
    with contextlib.suppress(RuntimeError):  # raised for a user without a home
        return str(Path("~/.kube/config").expanduser())
    return ""


def _is_there(path: Path) -> bool:
    """Whether a file exists.  A file that can't be looked at does: to read it is an error that says why."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except (OSError, ValueError):  # ValueError: NUL in a name
        pass
    return True


def _of_pod(account: Path, environ: Mapping[str, str]) -> Credentials:
    """Read a pod's credentials as client-go's rest.InClusterConfig does.

    Without ca.crt, the system's authorities are used.  Unlike with client-go, a ca.crt without a certificate is an
    error, at the connection.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        message = "is not given, and without KUBERNETES_SERVICE_HOST and _PORT this isn't a pod either"
        raise _unusable("", message, field="clientConnection.kubeconfig")
    return Credentials(
        server=_url(f"https://{host_port(host, port)}", "", "KUBERNETES_SERVICE_HOST and _PORT"),
        authority=_filled(account / "ca.crt") if _is_there(account / "ca.crt") else b"",
        token=_token(account / "token"),
        file=str(account / "token"),
    )


def other_address(text: str, configured: str) -> str:
    """Parse the URL of another address.  It must be as safe as the configured URL, as it gets the same token.

    Raises:
        BadInput: it is less safe, or no URL.
    """
    if _scheme(text) == _scheme(configured):
        return _url(text, "", "--api-server")
    raise _unusable("", f"{show(text)} is not a URL like {configured}", field="--api-server")


def _url(text: str, path: Path | str, field: str) -> str:
    """Return the URL of a server, to which paths are appended: without user, password, query and fragment.

    Raises:
        BadInput: it is no URL.  The error doesn't show the text, which may have a password.
    """
    scheme = _scheme(text)
    if not scheme:
        raise _unusable(path, "is not an http or https URL with a host and a valid port", field=field)
    parts = urlsplit(text)
    return urlunsplit((scheme, _place(parts), parts.path.rstrip("/"), "", ""))


def _scheme(url: str) -> str:
    """Return the scheme of a server's URL, "" if the text is no such URL."""
    with contextlib.suppress(ValueError):  # raised for bad addresses and ports
        parts = urlsplit(url)
        if parts.netloc.endswith("]") or "]:" in parts.netloc:
            address = ipaddress.IPv6Address(_ZONE.sub("", parts.hostname or ""))
            if address.scope_id:  # a zone without "%25" before it
                return ""
        is_valid = parts.hostname and parts.port != 0 and _place(parts).isascii() and not _NOT_IN_URLS.search(url)
        if parts.scheme in ("http", "https") and is_valid:
            return parts.scheme
    return ""


def _place(parts: SplitResult) -> str:
    """Return the host and port of a URL."""
    return ascii_name(parts.netloc.rpartition("@")[2])


S = TypeVar("S", bound=Section)


class _PartOfFile(NamedTuple):
    """A part of a kubeconfig, and the file that has it."""

    path: Path
    value: object


def _of_kubeconfigs(paths: Sequence[Path], context: str = "") -> Credentials:
    files = [(path, _kubeconfig(path)) for path in paths]
    first = files[0][0]

    def part(kind: type[S], section: str, name: str) -> tuple[Path, S]:
        parts = {
            each.name: _PartOfFile(path, getattr(each, section.removesuffix("s")))
            for path, file in reversed(files)
            for each in reversed(getattr(file, section))
            if each
        }
        return _part(first, kind, section, parts, name, "--context" if context else "current-context")

    wanted = context or next((file.current_context for _, file in files if file.current_context), "")
    _, chosen = part(ContextSection, "contexts", wanted)
    cluster_path, cluster = part(ClusterSection, "clusters", chosen.cluster)
    path, user = part(UserSection, "users", chosen.user)
    if user.auth_provider is not None:
        raise _unusable(path, "auth-provider isn't supported: use exec, a token or a certificate", field="users")
    server = _url(cluster.server, cluster_path, "server")
    credentials = Credentials(
        server=server,
        proxy_url=_proxy_url(cluster_path, cluster.proxy_url),
        impersonation=_impersonation(path, user),
    )
    return credentials if server.startswith("http:") else _with_tls(credentials, cluster_path, cluster, path, user)


def _with_tls(
    credentials: Credentials, cluster_path: Path, cluster: ClusterSection, path: Path, user: UserSection
) -> Credentials:
    """Return the credentials with all that goes by TLS alone.  As with client-go, no token is sent without TLS."""
    authority = _pem(cluster_path, cluster.certificate_authority, cluster.certificate_authority_data)
    if authority and cluster.insecure_skip_tls_verify:
        message = "insecure-skip-tls-verify excludes a certificate-authority: remove one of them"
        raise _unusable(cluster_path, message, field="clusters")
    token = _user_token(path, user)
    basic = _basic(path, user, cluster.server, token)
    certificate = _pem(path, user.client_certificate, user.client_certificate_data)
    key = _pem(path, user.client_key, user.client_key_data) if certificate else b""
    if certificate and not key:
        raise _unusable(path, "a client certificate has no client-key or client-key-data", field="users")
    file = str(path.parent / (user.token_file or ("" if user.token else user.client_certificate) or path.name))
    found = msgspec.structs.replace(
        credentials,
        authority=authority,
        token=token,
        basic=basic,
        certificate=certificate,
        key=key,
        tls_server_name=cluster.tls_server_name,
        is_insecure=cluster.insecure_skip_tls_verify,
        file=file,
    )
    is_needed = user.exec is not None and not (token or basic or certificate)
    return msgspec.structs.replace(found, plugin=_plugin(path, user, found, cluster)) if is_needed else found


def _impersonation(path: Path, user: UserSection) -> Impersonation:
    if (user.uid or user.groups or user.extra) and not user.impersonated:
        raise _unusable(path, "as-uid, as-groups and as-user-extra need the user in as", field="users")
    extra = tuple((key, value) for key, values in user.extra.items() for value in values)
    return Impersonation(user.impersonated, user.uid, user.groups, extra)


def _user_token(path: Path, user: UserSection) -> str:
    """Return a user's token.  A token beside a file counts as long as the file has none."""
    try:
        return _token(path.parent / user.token_file) if user.token_file else user.token.strip()
    except BadInput:
        if user.token:
            return user.token.strip()
        raise


def _basic(path: Path, user: UserSection, server: str, token: str) -> str:
    """Return the user and password for a server in front of the API, which itself takes none since Kubernetes 1.19."""
    if token and (user.username or user.password):
        raise _unusable(path, "a token excludes a username and a password: remove one of them", field="users")
    if token or not user.username:
        return "" if token else unquote(urlsplit(server).netloc.rpartition("@")[0])
    return f"{user.username}:{user.password}"


def _plugin(path: Path, user: UserSection, credentials: Credentials, cluster: ClusterSection) -> Plugin:
    """Return the user's plugin.  Its command is relative to the kubeconfig, or without a slash found by PATH."""
    try:
        plugin = msgspec.convert(user.exec, Plugin)
    except ValueError as error:
        raise _unusable(path, f"exec: {error}", field="users") from error
    command = str(path.parent / plugin.command) if "/" in plugin.command else plugin.command
    info = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": base64.b64encode(credentials.authority).decode(),
        "proxy-url": cluster.proxy_url,
        "disable-compression": cluster.disable_compression,
        "config": next((each.extension for each in cluster.extensions if each.name == EXEC_EXTENSION), None),
    }
    known = {name: value for name, value in info.items() if value} if plugin.provide_cluster_info else {}
    return msgspec.structs.replace(plugin, command=command, cluster=known)


def _part(
    first: Path, kind: type[S], section: str, parts: Mapping[str, _PartOfFile], name: str, field: str
) -> tuple[Path, S]:
    """Return the part of a name, and its file.  Parts that aren't used may be incomplete, and a user may be missing."""
    if name not in parts and (name or kind is not UserSection):
        fault = f"leads to {show(name)}, which isn't among the {section}"
        if not name and kind is ContextSection:
            fault = "has no current-context, and none is named"
        raise _unusable(first, fault, field=field)
    path, value = parts.get(name, _PartOfFile(first, None))
    try:
        return path, msgspec.convert({} if value is None else value, kind)
    except ValueError as error:
        raise _unusable(path, f"{show(name)}: {error}", field=section) from error


def _proxy_url(path: Path, text: str) -> str:
    try:
        if text:
            parse_proxy(text, KUBECONFIG)
    except ValueError as error:
        raise _unusable(path, str(error), field="proxy-url") from error
    return text


def _kubeconfig(path: Path) -> Kubeconfig:
    try:
        return parse_kubeconfig(_read(path))
    except ValueError as error:
        raise _unusable(path, str(error), "kubeconfig") from error


def _pem(path: Path, file: str, data: str) -> bytes:
    """Return a certificate or key from text, or else from a file relative to the kubeconfig."""
    try:
        lines = data.replace("\n", "").replace("\r", "")  # Go skips these two, and nothing else
        return base64.b64decode(lines, validate=True) if lines else _filled(path.parent / file) if file else b""
    except ValueError as error:  # binascii.Error too
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
