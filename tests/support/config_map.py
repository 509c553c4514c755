"""A file as kubelet mounts it from a ConfigMap: a link to a link, which is replaced when the ConfigMap changes."""

from __future__ import annotations

import itertools
from pathlib import Path


class ConfigMap:
    """A directory with one file, `config.yaml` -> `..data/config.yaml`, where `..data` is a link to a directory.

    Attributes:
        path: the file.
    """

    def __init__(self, directory: Path, text: str) -> None:
        self._directory = directory
        self._numbers = itertools.count(1)
        directory.mkdir()
        self.path = directory / "config.yaml"
        self.update(text)
        self.path.symlink_to("..data/config.yaml")

    def update(self, text: str) -> None:
        """Change the file as kubelet's atomic writer does (pkg/volume/util/atomic_writer.go)."""
        made = self._directory / f"..2026_{next(self._numbers)}"
        made.mkdir()
        (made / "config.yaml").write_text(text)
        link = self._directory / "..data_tmp"
        link.symlink_to(made.name)
        data = self._directory / "..data"
        old = data.resolve() if data.is_symlink() else None
        link.rename(data)
        if old:
            (old / "config.yaml").unlink()
            old.rmdir()
