"""`nftproxy run` at a real API server, by each detour of tests/support/detours.py, in a user namespace.

The kubeconfig has no root authority, but only the intermediate that has issued the server's certificate.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import trustme

from tests.support.detours import ADDRESS, DETOURS, PORT, Company
from tools.kubernetes.binaries import Binaries
from tools.kubernetes.control_plane import RealControlPlane

HEADER = ("run in a user namespace, by an intermediate authority", "reaches the API server by")
PACKAGES = {"tinyproxy": "tinyproxy-bin", "microsocks": "microsocks"}
"""Programs of the machine, and the packages that have them."""


def try_detours(binaries: Binaries, directory: Path) -> Iterator[tuple[str, str]]:
    """Yield each detour by which an agent serves the cluster, with the way that its status names.

    Raises:
        AssertionError: an agent doesn't serve.
    """
    authority = trustme.CA().create_child_ca()
    with (
        Company(directory) as company,
        RealControlPlane(
            binaries, directory / "control-plane", ADDRESS, PORT, start=company.start, authority=authority
        ) as plane,
    ):
        plane.start()
        for number, (name, detour) in enumerate(DETOURS.items(), start=10):
            way = company.serve(plane.kubeconfig, detour, f"10.96.0.{number}")
            assert way == detour.way, way
            yield name, way
