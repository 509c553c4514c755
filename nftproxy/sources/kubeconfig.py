"""The content of a kubeconfig, as client-go decodes it (tools/clientcmd/api/v1).

A null is as good as absent, of repeated keys the last counts, and only the first document is read.  Unlike client-go,
which decodes the whole file, a part is only judged once the current context leads to it.
"""

from __future__ import annotations

import codecs

import msgspec

from nftproxy.sources.documents import yaml_documents


class Section(msgspec.Struct, rename="kebab"):
    """A section of a kubeconfig."""


class NamedExtension(Section):
    """A named value of a kind that client-go doesn't know."""

    name: str = ""
    extension: object = None


class ClusterSection(Section):
    """A server, and how it proves itself."""

    server: str
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: list[NamedExtension] = []


class UserSection(Section):
    """How a client proves itself."""

    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: object = None
    auth_provider: object = None
    username: str = ""
    password: str = ""
    impersonated: str = msgspec.field(name="as", default="")
    uid: str = msgspec.field(name="as-uid", default="")
    groups: tuple[str, ...] = msgspec.field(name="as-groups", default=())
    extra: dict[str, list[str]] = msgspec.field(name="as-user-extra", default={})


class ContextSection(Section):
    """The names of a cluster and a user, and the default namespace."""

    cluster: str = ""
    user: str = ""
    namespace: str = ""


class NamedPart(Section):
    """A cluster, context or user with its name.  It isn't judged here."""

    name: str = ""
    cluster: object = None
    context: object = None
    user: object = None


class Kubeconfig(Section):
    """All clusters, contexts and users of a file."""

    current_context: str = ""
    clusters: list[NamedPart | None] = []
    contexts: list[NamedPart | None] = []
    users: list[NamedPart | None] = []


def parse_kubeconfig(data: bytes) -> Kubeconfig:
    """Parse the first document with content, YAML or JSON.  Without one, return a kubeconfig without parts.

    Raises:
        ValueError: it is no kubeconfig.
    """
    documents = yaml_documents(_text(data), may_repeat_keys=True)
    document = next((each for each in documents if each.fault or each.value is not None), None)
    if document is None:
        return Kubeconfig()
    if document.fault:
        raise ValueError(document.fault)
    return msgspec.convert(_without_nulls(document.value), Kubeconfig)


def _text(data: bytes) -> str:
    """Decode UTF-8, or UTF-16 with a byte order mark, which PowerShell writes (YAML 1.1, chapter 5.2)."""
    is_wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if is_wide else "utf-8")


def _without_nulls(value: object) -> object:
    """Return a value without the keys whose value is null.  Lists keep their nulls."""
    match value:
        case dict():
            return {key: _without_nulls(each) for key, each in value.items() if each is not None}
        case list():
            return [_without_nulls(each) for each in value]
    return value
