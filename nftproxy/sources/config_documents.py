"""Configurations of kube-proxy and of nftproxy in files: as they are, or in the ConfigMaps of a cluster.

kubeadm has a ConfigMap with the keys config.conf and kubeconfig.conf, EKS has two (kube-proxy-config and kube-proxy)
with the keys config and kubeconfig.  So names don't count: the contents of each value say what it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from nftproxy.api.parse import objects_in
from nftproxy.config.declared_fields import Fields
from nftproxy.config.flags import flags_by_path, other_warnings, override
from nftproxy.config.parse_config import EMPTY_CONFIG, KIND, parse_config
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.model.settings import Config
from nftproxy.sources.documents import to_yaml, yaml_documents
from nftproxy.sources.files import BYTE_ORDER_MARK, documents_in, documents_of
from nftproxy.sources.reading import LARGEST_CONFIG

Object = Mapping[str, Any]


class KubeProxySettings(NamedTuple):
    """The settings of a cluster's own kube-proxy."""

    config: object  # a KubeProxyConfiguration, decoded
    server: str  # the API server's URL in the kubeconfig, "" without a kubeconfig
    daemon_sets: tuple[str, ...] = ()  # the names of the DaemonSets in the same file


def load_config(
    path: Path | None,
    declared: Fields,
    flags: Mapping[str, str] = MappingProxyType({}),
    *,
    content: bytes | None = None,
) -> tuple[Config, list[Problem]]:
    """Load the KubeProxyConfiguration in a YAML or JSON file.  Return warnings about its unused and unknown fields too.

    Args:
        path: the file, None for the defaults.
        declared: the fields that extensions declare (installed.py).
        flags: texts of kube-proxy's flags by their names (flags.py), which override fields.
        content: the content of the file if it was read before.

    Raises:
        BadInput: the file can't be read, or isn't a single document, or the configuration is wrong, with every fault.
    """
    raw = EMPTY_CONFIG if path is None else config_document(path, content)
    overridden = override(raw, flags, declared) if isinstance(raw, Mapping) else raw
    source = "flags" if path is None else str(path)
    config, warnings = parse_config(overridden, source, declared, flags_by_path(flags, declared))
    return config, [*warnings, *other_warnings(flags)]


def write_config(path: Path, config: bytes) -> None:
    """Write a configuration from `configz` to a YAML file, and replace the file.

    Raises:
        BadInput: the file can't be written.
    """
    (document,) = msgspec.json.decode(config).values()
    try:
        path.write_text(to_yaml([document]))
    except OSError as error:
        raise BadInput(unusable(path, error.strerror or str(error))) from error


def config_document(path: Path, content: bytes | None = None) -> object:
    """Read the single document of a configuration file, decoded.  In a ConfigMap, it is the configuration in there.

    `content` is the content of the file if it was read before.

    Raises:
        BadInput: the file or a value of a ConfigMap can't be read, or there isn't a single configuration.
    """
    documents = _read_documents(path, content)
    if len(documents) != 1:
        raise BadInput(unusable(path, f"holds {len(documents)} documents where one is needed"))
    found = [each for each in _unfolded(documents, path) if each.get("kind") == KIND]
    match documents[0]:
        case {"kind": "ConfigMap" | "List"} if len(found) != 1:
            raise BadInput(unusable(path, f"has {len(found)} {KIND}s where one is needed"))
    return found[0] if found else documents[0]


def read_kube_proxy(path: Path) -> KubeProxySettings:
    """Read the ConfigMaps of kube-proxy, or a KubeProxyConfiguration, from a file ("-" is standard input).

    Without a mode, it is an empty text, as in kubeadm's ConfigMap up to Kubernetes 1.36.

    kubectl --namespace kube-system get configmap kube-proxy --output yaml

    Raises:
        BadInput: the file or a ConfigMap can't be read, or it has no KubeProxyConfiguration, or several.
    """
    objects = list(_unfolded(_read_documents(path), path))
    configs = [each for each in objects if each.get("kind") == KIND]
    if len(configs) != 1:
        why = f"has {len(configs)} {KIND}s where one is needed"
        why += "" if configs else "; without one, options give the values (docs/install.md)"
        raise BadInput(Problem(str(path), "", "", why, Code.MANIFESTS_INCOMPLETE))
    given = {"mode": "", **{name: value for name, value in configs[0].items() if (name, value) != ("mode", None)}}
    return KubeProxySettings(given, next(_servers(objects), ""), tuple(_daemon_sets(objects)))


def unusable(path: Path | None, why: str) -> Problem:
    """The problem of a file that can't be used."""
    return Problem(str(path), "", "", why, Code.CONFIGURATION_UNREADABLE)


def _read_documents(path: Path, content: bytes | None = None) -> list[object]:
    """Read the documents of a YAML or JSON file ("-" is standard input), without empty documents.

    `content` is the content of the file if it was read before.

    Raises:
        BadInput: the file or a document can't be read.
    """
    problems: list[Problem] = []
    code = Code.CONFIGURATION_UNREADABLE
    found = list(
        documents_in(path, problems, code, LARGEST_CONFIG)
        if content is None
        else documents_of(path, content.removeprefix(BYTE_ORDER_MARK), problems, code)
    )
    if problems:
        raise BadInput(*problems)
    return [document.value for document in found if document.value is not None]


def _unfolded(documents: Iterable[object], source: Path) -> Iterator[Object]:
    """Yield the objects in documents.  A ConfigMap stands for the documents in its values.

    Raises:
        BadInput: a KubeProxyConfiguration in a ConfigMap can't be read.
    """
    for given in (each for document in documents for each in objects_in(document)):
        if given.get("kind") == "ConfigMap":
            yield from _in_config_map(given, source)
        else:
            yield given


def _in_config_map(given: Object, source: Path) -> Iterator[Object]:
    data = given.get("data")
    for key, text in data.items() if isinstance(data, Mapping) else ():
        for document in yaml_documents(text) if isinstance(text, str) else ():
            if document.fault and KIND in text:
                field, code = f"data[{key}]", Code.CONFIGURATION_UNREADABLE
                raise BadInput(Problem(str(source), "ConfigMap", field, document.fault, code))
            if isinstance(document.value, Mapping):
                yield document.value


def _daemon_sets(objects: Iterable[Object]) -> Iterator[str]:
    """Yield the names of the DaemonSets among some objects."""
    for each in objects:
        match each:
            case {"kind": "DaemonSet", "metadata": {"name": str(name)}}:
                yield name


def _servers(objects: Iterable[Object]) -> Iterator[str]:
    """Yield the URLs of API servers in the kubeconfigs among some objects."""
    found = (each.get("clusters") for each in objects if each.get("kind") == "Config")
    for cluster in (each for clusters in found if isinstance(clusters, list) for each in clusters):
        match cluster:
            case {"cluster": {"server": str(server)}}:
                yield server
