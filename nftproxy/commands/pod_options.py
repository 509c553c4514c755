"""The options of `nftproxy manifests` about the pods: where they run, what they may use, and their labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from nftproxy.api.decode import is_label, is_label_key, is_label_value, is_subdomain
from nftproxy.deploy.daemonset import NAMESPACE
from nftproxy.sources.documents import yaml_documents

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--namespace", default=NAMESPACE, show_default=True, help="The namespace of all objects.", metavar="NAME"
    ),
    click.option("--image-pull-secret", multiple=True, help="A Secret that the registry asks for.", metavar="NAME"),
    click.option("--resources", default="", help="Requests and limits of each container.", metavar="YAML"),
    click.option("--tolerations", default="", help="The pods' tolerations, of every taint by default.", metavar="YAML"),
    click.option("--affinity", default="", help="The pods' affinity.", metavar="YAML"),
    click.option("--pod-label", multiple=True, help="A further label of the pods.", metavar="NAME=VALUE"),
    click.option("--pod-annotation", multiple=True, help="An annotation of the pods.", metavar="NAME=VALUE"),
)


def pod_options(command: Command) -> Command:
    """Give a command the options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def pod_settings(
    *,
    namespace: str,
    image_pull_secret: Iterable[str],
    resources: str,
    tolerations: str,
    affinity: str,
    pod_label: Iterable[str],
    pod_annotation: Iterable[str],
) -> dict[str, Any]:
    """Return the fields of `DaemonSetOptions` that these values of the options mean.

    Raises:
        click.BadParameter: a value can't be what it is for.
    """
    for name in image_pull_secret:
        if not is_subdomain(name):
            raise click.BadParameter(f"{name!r} is not the name of a Secret", param_hint="--image-pull-secret")
    read = {
        "resources": _yaml(resources, dict, "--resources"),
        "tolerations": _yaml(tolerations, list, "--tolerations"),
        "affinity": _yaml(affinity, dict, "--affinity"),
    }
    return {
        "namespace": namespace_of(namespace),
        "pull_secrets": tuple(image_pull_secret),
        "pod_labels": tuple(label_of(text, "--pod-label") for text in pod_label),
        "pod_annotations": tuple(_annotation_of(text) for text in pod_annotation),
        **{name: value for name, value in read.items() if value is not None},
    }


def namespace_of(text: str) -> str:
    """Return the name of a namespace.

    Raises:
        click.BadParameter: no namespace can have this name.
    """
    if not is_label(text):
        raise click.BadParameter(f"{text!r} is not the name of a namespace", param_hint="--namespace")
    return text


def label_of(text: str, option: str) -> tuple[str, str]:
    """Return the name and the value in NAME=VALUE.

    Raises:
        click.BadParameter: no label can be so.
    """
    name, separator, value = text.partition("=")
    if not (separator and is_label_key(name) and (not value or is_label_value(value))):
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
    return name, value


def _annotation_of(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (separator and is_label_key(name)):
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--pod-annotation")
    return name, value


def _yaml(text: str, kind: type, option: str) -> Any:
    """The value of an option in YAML, None without a text."""
    if not text:
        return None
    document, *more = yaml_documents(text)
    if more or document.fault or not isinstance(document.value, kind):
        expected = "a mapping" if kind is dict else "a list"
        raise click.BadParameter(f"{text!r} is not {expected} in YAML", param_hint=option)
    return document.value
