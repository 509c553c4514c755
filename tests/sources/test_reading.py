"""Files of any kind are read up to a bound, and a file that could block counts as none."""

from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path

import pytest

from nftproxy.installed_fields import FIELDS
from nftproxy.model.errors import BadInput
from nftproxy.sources.config_documents import load_config
from nftproxy.sources.credentials import read_credentials
from nftproxy.sources.files import load
from nftproxy.sources.reading import LARGEST_CONFIG, LARGEST_MANIFEST, read_bounded

TERABYTE = 2**40
KUBECONFIG = (
    "{clusters: [{name: a, cluster: {server: 'https://a'}}], contexts: [{name: a, context: {cluster: a, user: a}}],"
    " users: [{name: a, user: {tokenFile: token}}], current-context: a}"
)


def sparse(path: Path) -> Path:
    """Make a file of a terabyte that takes no room."""
    with path.open("wb") as file:
        file.truncate(TERABYTE)
    return path


@pytest.mark.parametrize(("size", "is_good"), [(0, True), (1, True), (99, True), (100, True), (101, False)])
@pytest.mark.parametrize("may_wait", [True, False])
def test_the_bound(tmp_path: Path, size: int, is_good: bool, may_wait: bool) -> None:
    """A file of exactly that size is read whole, and another byte is too many."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    if is_good:
        assert read_bounded(path, 100, may_wait=may_wait) == b"x" * size
        return
    with pytest.raises(OSError, match="has more than 100 bytes") as caught:
        read_bounded(path, 100, may_wait=may_wait)
    assert caught.value.errno == errno.EFBIG


def test_a_device_without_end() -> None:
    """A device without a size is read until the bound."""
    with pytest.raises(OSError, match="has more than 5000000 bytes"):
        read_bounded(Path("/dev/zero"), 5_000_000, may_wait=True)


def test_a_pipe(tmp_path: Path) -> None:
    """A pipe is read whole if the caller may wait.  Otherwise it is refused, as it might never get a writer."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="is not a regular file"):
        read_bounded(path, 100)
    reader, writer = os.pipe()
    os.write(writer, b"text")
    os.close(writer)
    assert read_bounded(Path(f"/dev/fd/{reader}"), 100, may_wait=True) == b"text"
    os.close(reader)


def test_a_sparse_manifest(tmp_path: Path) -> None:
    """A manifest of a terabyte is a Problem that names it, and is not read.  Other files are loaded."""
    path = sparse(tmp_path / "sparse.yaml")
    (tmp_path / "good.json").write_text('{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "a"}}')
    tracemalloc.start()
    try:
        manifests = load([tmp_path])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [str(problem) for problem in manifests.problems] == [f"{path}: has more than {LARGEST_MANIFEST} bytes"]
    assert len(manifests.objects) == 1
    assert peak < 10_000_000


def test_a_sparse_configuration(tmp_path: Path) -> None:
    """So is a configuration, a kubeconfig, and a file that a kubeconfig names."""
    path = sparse(tmp_path / "token")
    with pytest.raises(BadInput, match=f"has more than {LARGEST_CONFIG} bytes"):
        load_config(path, FIELDS)
    with pytest.raises(BadInput, match=f"has more than {LARGEST_CONFIG} bytes"):
        read_credentials(str(path))
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    with pytest.raises(BadInput, match=f"token: has more than {LARGEST_CONFIG} bytes"):
        read_credentials(str(tmp_path / "kubeconfig"))


def test_a_token_that_nobody_writes(tmp_path: Path) -> None:
    """A pipe in the place of a token holds nobody up."""
    os.mkfifo(tmp_path / "token")
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    with pytest.raises(BadInput, match="token: is not a regular file"):
        read_credentials(str(tmp_path / "kubeconfig"))
