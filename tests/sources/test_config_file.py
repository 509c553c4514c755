"""The configuration's file: every way in which it may change is noticed, and nothing else is."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nftproxy.model.errors import BadInput
from nftproxy.sources import config_file
from nftproxy.sources.config_file import HANDED_OVER, ConfigFile
from tests.support.config_map import ConfigMap
from tests.support.waiting import PATIENCE

HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
OLD, NEW = f"{HEAD}oomScoreAdj: 1\n", f"{HEAD}oomScoreAdj: 2\n"
QUIET = 0.5
"""Seconds in which nothing must be noticed: longer than noticing takes, and more only finds more."""


def write(path: Path) -> None:
    """Write into the file."""
    path.write_text(NEW)


def damage(path: Path) -> None:
    """Write something that is no configuration."""
    path.write_text("bad: [")


def replace(path: Path) -> None:
    """Write beside the file and rename, as editors do."""
    beside = path.with_name("beside")
    beside.write_text(NEW)
    beside.rename(path)


def delete_and_write(path: Path) -> None:
    """Delete the file, and make it anew."""
    path.unlink()
    path.write_text(NEW)


async def changed(file: ConfigFile, change: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Whether a change is noticed in time."""
    changes = file.changes()
    coming = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0.05)  # most often it is being waited for by now; if not, it must be noticed all the same
    change()
    done, _ = await asyncio.wait([coming], timeout=seconds)
    coming.cancel()
    await asyncio.wait([coming])
    await changes.aclose()
    return bool(done)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A configuration."""
    file = tmp_path / "config.yaml"
    file.write_text(OLD)
    return file


@pytest.mark.parametrize("change", [write, replace, delete_and_write])
async def test_changes_are_noticed(path: Path, change: Callable[[Path], None]) -> None:
    """Every way to change a file is noticed, and its new contents are loaded."""
    file = ConfigFile(path, (), {"oom-score-adj": "7"} if change is replace else {})
    assert await changed(file, lambda: change(path))
    assert file.load()[0].oom_score_adj == (7 if change is replace else 2)


async def test_a_config_map_that_changes_is_noticed_each_time(tmp_path: Path) -> None:
    """Kubelet's renaming of a link is noticed, also the second time, when the directories differ."""
    mounted = ConfigMap(tmp_path / "etc", OLD)
    file = ConfigFile(mounted.path, ())
    for text in (NEW, OLD, NEW):
        assert await changed(file, lambda text=text: mounted.update(text))  # type: ignore[misc]


async def test_a_link_to_elsewhere_is_followed(tmp_path: Path, path: Path) -> None:
    """A file that is named by a link in another directory is noticed when it is written to where it is."""
    link = tmp_path / "sub" / "link.yaml"
    link.parent.mkdir()
    link.symlink_to(path)
    assert await changed(ConfigFile(link, ()), lambda: write(path))


async def test_a_change_between_reading_and_watching_is_noticed(path: Path) -> None:
    """A write before the watch begins counts as a change."""
    file = ConfigFile(path, ())
    write(path)
    assert await changed(file, lambda: None)


async def test_the_same_content_is_no_change(path: Path) -> None:
    """A file that is written with the same content, and files beside it, are no change."""

    def touch() -> None:
        path.write_text(OLD)
        path.with_name("other").write_text(NEW)

    assert not await changed(ConfigFile(path, ()), touch, QUIET)


async def test_a_file_that_goes_is_a_change(path: Path) -> None:
    """A file that is deleted is noticed, and can't be loaded any more."""
    file = ConfigFile(path, ())
    assert await changed(file, path.unlink)
    with pytest.raises(BadInput, match="No such file"):
        file.load()


async def test_a_pipe_in_the_place_of_the_file_is_refused(path: Path) -> None:
    """A pipe that nobody writes to is noticed and refused, and holds nobody up."""

    def change() -> None:
        path.unlink()
        os.mkfifo(path)

    file = ConfigFile(path, ())
    assert await changed(file, change)
    with pytest.raises(BadInput, match="is not a regular file"):
        file.load()
    with pytest.raises(BadInput, match="is not a regular file"):
        ConfigFile(path, ()).load()


async def test_the_bytes_that_were_checked_count(path: Path) -> None:
    """A file that changes after it was noticed is loaded as it was noticed, and then changes again."""
    file = ConfigFile(path, ())
    assert await changed(file, lambda: write(path))
    damage(path)
    assert file.load()[0].oom_score_adj == 2
    assert await changed(file, lambda: None)
    with pytest.raises(BadInput):
        file.load()


async def test_the_next_program_image_gets_the_bytes_that_were_checked(path: Path) -> None:
    """Content that was handed over is loaded once, whatever the file has meanwhile, and the file's is a change."""
    write(path)
    ConfigFile(path, ()).hand_over()
    damage(path)
    file = ConfigFile(path, ())
    assert file.load()[0].oom_score_adj == 2
    assert await changed(file, lambda: None)
    with pytest.raises(BadInput):
        ConfigFile(path, ()).load()


def test_what_was_not_handed_over_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file descriptor that isn't open, or no number, counts as nothing handed over."""
    for text in ("", "x", "-1", "1000000"):
        monkeypatch.setenv(HANDED_OVER, text)
        assert ConfigFile(path, ()).load()[0].oom_score_adj == 1


async def test_a_directory_that_goes_before_it_is_watched_delays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change is noticed at once if kubelet has removed the directory of the change before it in the meantime."""
    config_map = ConfigMap(tmp_path / "mounted", OLD)
    file = ConfigFile(config_map.path, ())
    looks = iter([{config_map.path.parent, config_map.path.resolve().parent}])
    find = file._directories
    monkeypatch.setattr(file, "_directories", lambda: next(looks, None) or find())
    config_map.update(NEW)
    changes = file.changes()
    await asyncio.wait_for(anext(changes), PATIENCE)
    config_map.update(OLD)
    await asyncio.wait_for(anext(changes), PATIENCE)
    await changes.aclose()


async def test_without_a_file_nothing_changes() -> None:
    """A configuration of flags alone stays as it is."""
    file = ConfigFile(None, (), {"oom-score-adj": "3"})
    assert file.load()[0].oom_score_adj == 3
    assert not await changed(file, lambda: None, QUIET)


async def test_without_inotify_the_file_is_read_by_the_clock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without inotify a change is noticed at the next periodic reading of the file."""

    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(config_file, "Inotify", fail)
    monkeypatch.setattr(config_file, "PERIOD", 0.05)
    assert await changed(ConfigFile(path, ()), lambda: write(path))
