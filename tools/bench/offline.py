"""`nftproxy render` of a whole cluster, from JSON and from YAML."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tools.bench import cluster
from tools.bench.cluster import Object, Size
from tools.bench.figures import Figures
from tools.bench.processes import CHECKOUT

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
    began = time.monotonic()
    subprocess.run(
        command, cwd=CHECKOUT, env=os.environ | {"PYTHONPATH": str(CHECKOUT)}, check=True, stdout=subprocess.DEVNULL
    )
    return time.monotonic() - began


def write_yaml(size: Size, path: Path) -> Path:
    """The cluster as `kubectl get -o yaml` would print it, but for one document for each object."""
    with path.open("w") as file:
        for each in cluster.objects(size):
            file.write("---\n" + "\n".join(_lines(each)) + "\n")
    return path


def _lines(value: object) -> Iterator[str]:
    match value:
        case dict() if value:
            for key, inner in value.items():
                yield from _entry(_scalar(key), inner)
        case list() if value:
            for inner in value:
                first, *rest = _lines(inner)
                yield f"- {first}"
                yield from (f"  {line}" for line in rest)
        case _:
            yield _scalar(value)


def _entry(key: str, inner: Object | list[object] | object) -> Iterator[str]:
    if isinstance(inner, dict | list) and inner:
        yield f"{key}:"
        yield from (f"  {line}" for line in _lines(inner))
    else:
        yield f"{key}: {_scalar(inner)}"


def _scalar(value: object) -> str:
    """Plain where a word can't be taken for anything else."""
    is_plain = isinstance(value, str) and value.replace("-", "").replace(".", "").isalpha()
    return value if is_plain and isinstance(value, str) else json.dumps(value)
