"""A small client of the API, for the programs beside the control plane."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import httpx
import yaml


def credentials(kubeconfig: Path) -> tuple[str, ssl.SSLContext, dict[str, str]]:
    """URL, TLS context and headers for the API server, from a kubeconfig that `RealControlPlane` has written."""
    document = yaml.safe_load(kubeconfig.read_text())
    (cluster,), (user,) = document["clusters"], document["users"]
    context = ssl.create_default_context(cafile=cluster["cluster"]["certificate-authority"])
    return cluster["cluster"]["server"], context, {"Authorization": f"Bearer {user['user']['token']}"}


def client(kubeconfig: Path) -> httpx.Client:
    """A client with the credentials of a kubeconfig."""
    url, context, headers = credentials(kubeconfig)
    return httpx.Client(base_url=url, headers=headers, verify=context, trust_env=False)


def get(api: httpx.Client, path: str) -> Any:
    """An object or a list, None if there is no such object.

    Raises:
        httpx.HTTPError: the API server gives no answer, or an error.
    """
    answer = api.get(path)
    return None if answer.status_code == httpx.codes.NOT_FOUND else answer.raise_for_status().json()


def patch(api: httpx.Client, path: str, change: dict[str, Any]) -> None:
    """Change an object by a merge patch.

    Raises:
        httpx.HTTPError: the API server gives no answer, or an error.
    """
    api.patch(path, json=change, headers={"Content-Type": "application/merge-patch+json"}).raise_for_status()
