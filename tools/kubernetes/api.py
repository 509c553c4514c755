"""A small client of the API, for the programs beside the control plane."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import httpx
import yaml


def client(kubeconfig: Path) -> httpx.Client:
    """A client with the credentials of a kubeconfig that `RealControlPlane` has written."""
    document = yaml.safe_load(kubeconfig.read_text())
    (cluster,), (user,) = document["clusters"], document["users"]
    context = ssl.create_default_context(cafile=cluster["cluster"]["certificate-authority"])
    headers = {"Authorization": f"Bearer {user['user']['token']}"}
    return httpx.Client(base_url=cluster["cluster"]["server"], headers=headers, verify=context, trust_env=False)


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
