"""The bytes of an image follow from its recipe, and not from the layers that earlier builds have left."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tools.image import build

RECIPE = """\
FROM scratch AS build
COPY file /file
FROM scratch
ARG COMMIT=unknown
LABEL commit=$COMMIT
COPY --from=build /file /file
ENTRYPOINT ["/file"]
"""


@pytest.mark.skipif(shutil.which("buildah") is None or os.geteuid() != 0, reason="there is no buildah, or not for us")
def test_layers_of_another_architecture_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that reuses layers, after a build for another architecture, has the same bytes as without them."""
    monkeypatch.setattr(build, "TREES", tmp_path)
    (tmp_path / "recipe").write_text(RECIPE)
    (tmp_path / "file").write_text("content")
    archives: list[Path] = []
    for architecture, options in (("amd64", ()), ("arm64", ()), ("arm64", ("--no-cache",))):
        archives.append(tmp_path / f"{len(archives)}.tar")
        build.build_archive(
            "docker.io/library/small:1",
            tmp_path / "recipe",
            tmp_path,
            archives[-1],
            *build.TIMESTAMP,
            *options,
            architecture=architecture,
        )
    amd64, reused, anew = (each.read_bytes() for each in archives)
    assert reused == anew
    assert amd64 != anew
