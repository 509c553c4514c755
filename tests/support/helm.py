"""Renders charts by Helm itself: its Go code, which the package helm-python-sdk brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from helm_python import Chart


def rendered(archive: bytes, values: Mapping[str, Any], namespace: str = "kube-system") -> str:
    """The objects that `helm template` prints for a packed chart, as YAML documents.

    Raises:
        helm_python.HelmValuesError: the chart's schema refuses the values.
        helm_python.HelmRenderError: a template refuses them.
    """
    with Chart.load_archive(archive) as chart:
        chart.validate_schema(dict(values))
        made = chart.render(dict(values), name="nftproxy", namespace=namespace)
    return "\n---\n".join(text for name, text in sorted(made.items()) if name.endswith(".yaml") and text.strip())


def lint(path: str, **options: Any) -> list[str]:
    """What `helm lint` has to say about the chart in a folder, without hints."""
    from helm_python import chart

    said = chart.lint(path, **options)
    return [*said["errors"], *(each["error"] for each in said["messages"] if each["severity"] != HINT)]


HINT = 1
"""The severity of a hint, such as that an icon is recommended (Helm's lint/support)."""
