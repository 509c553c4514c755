"""`nftproxy render` of a whole cluster, from JSON and from YAML."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from tests.support.processes import CHECKOUT
from tools.bench import cluster
from tools.bench.cluster import Size
from tools.bench.figures import Figures, timed

TIMES = 3


def measure_render(size: Size, figures: Figures) -> None:
    """The time of the whole process, of each format the median."""
    with tempfile.TemporaryDirectory(prefix="nftproxy-bench-") as directory:
        inputs = {
            "JSON": cluster.write(size, Path(directory, "cluster.json")),
            "YAML": write_yaml(size, Path(directory, "cluster.yaml")),
        }
        for name, path in inputs.items():
            figures[f"render/{size.services}/{name}"] = statistics.median(_render(path) for _ in range(TIMES))


def _render(path: Path) -> float:
    command = [sys.executable, "-m", "nftproxy", "render", str(path), "--node", cluster.NODE]
    return timed(lambda: subprocess.run(command, cwd=CHECKOUT, check=True, stdout=subprocess.DEVNULL))[1]


def write_yaml(size: Size, path: Path) -> Path:
    """Write a cluster to a file of YAML, a document for each object.  Returns its path."""
    with path.open("w") as file:
        yaml.dump_all(cluster.objects(size), file, yaml.CSafeDumper, explicit_start=True)
    return path
