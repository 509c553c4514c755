"""A directory of manifests is followed as people and tools edit it, and never acted upon half-way."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from asyncinotify import Inotify

from nftproxy.model.events import Listed
from nftproxy.model.objects import Service
from nftproxy.sources import directory as directory_module
from nftproxy.sources.directory import DEBOUNCE, LONGEST_WAIT, Directory

PROMISE = 0.2
"""Seconds within which rules follow an edit.  The listings of these tests must come sooner still."""

Names = frozenset[str]


def manifest(*names: str) -> str:
    """A Service of each name, in YAML documents that are each valid alone."""
    return "".join(
        f"---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n"
        f"spec:\n  clusterIP: 10.96.0.{number}\n  ports:\n  - port: 80\n"
        for number, name in enumerate(names, 10)
    )


class Follower:
    """A directory that is followed: the names of the Services in each of its listings, and when it came."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listings: list[Names] = []
        self.times: list[float] = []
        self._news = asyncio.Condition()

    async def collect(self) -> None:
        """Follow until cancelled."""
        async for events in Directory(self.path).listings():
            listed = (each for event in events if isinstance(event, Listed) for each in event.objects)
            async with self._news:
                self.listings.append(frozenset(each.key.name for each in listed if isinstance(each, Service)))
                self.times.append(time.monotonic())
                self._news.notify_all()

    async def first(self) -> None:
        """Wait for the first listing."""
        await self._wait(lambda: bool(self.listings), "anything")

    async def until(self, *names: str) -> None:
        """Wait until the last listing has exactly these Services."""
        await self._wait(lambda: self.listings[-1] == frozenset(names), sorted(names))

    async def _wait(self, condition: Callable[[], bool], what: object) -> None:
        try:
            async with self._news:
                await asyncio.wait_for(self._news.wait_for(condition), 60)
        except TimeoutError:
            pytest.fail(f"{what} was never told, but {list(map(sorted, self.listings))}")

    async def silence(self, seconds: float = 2 * LONGEST_WAIT) -> None:
        """Nothing is reported for some seconds, longer than anything waits for."""
        before = len(self.listings)
        await asyncio.sleep(seconds)
        assert self.listings[before:] == []


@contextlib.asynccontextmanager
async def following(path: Path) -> AsyncIterator[Follower]:
    """Follow a directory, from its first listing on, while it is edited."""
    follower = Follower(path)
    task = asyncio.create_task(follower.collect())
    try:
        await follower.first()
        yield follower
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with two Services in a file."""
    made = tmp_path / "manifests"
    made.mkdir()
    (made / "web.yaml").write_text(manifest("a", "b"))
    return made


AB, CD = frozenset("ab"), frozenset("cd")


# ---- what is reported ----------------------------------------------------------------------------------------------


async def test_all_there_is_comes_first(directory: Path) -> None:
    """The first listing comes at once and has everything."""
    (directory / "more.json").write_text('{"apiVersion": "v1", "kind": "List", "items": []}')
    (directory / "more.yml").write_text(manifest("e"))
    async with following(directory) as follower:
        await follower.silence()
    assert follower.listings == [frozenset("abe")]


async def test_an_empty_directory_is_told(tmp_path: Path) -> None:
    """A directory without manifests is a cluster without Services, not an unknown cluster."""
    async with following(tmp_path) as follower:
        (tmp_path / "web.yaml").write_text(manifest("a"))
        await follower.until("a")
    assert follower.listings == [frozenset(), frozenset("a")]


async def test_new_files_count(directory: Path) -> None:
    """A file that is added adds its objects."""
    async with following(directory) as follower:
        (directory / "more.yaml").write_text(manifest("c"))
        await follower.until(*"abc")
    assert follower.listings == [AB, frozenset("abc")]


async def test_deleted_files_take_their_objects_with_them(directory: Path) -> None:
    """A file that is deleted, or renamed without a suffix of manifests, holds nothing any more."""
    (directory / "more.yaml").write_text(manifest("c"))
    async with following(directory) as follower:
        (directory / "more.yaml").unlink()
        await follower.until(*"ab")
        (directory / "web.yaml").rename(directory / "web.yaml.disabled")
        await follower.until()
    assert follower.listings == [frozenset("abc"), AB, frozenset()]


async def test_other_files_are_nothing_to_tell_of(directory: Path) -> None:
    """Hidden files, backups, directories and their contents change nothing."""
    (directory / "below").mkdir()
    async with following(directory) as follower:
        for name in (".web.yaml.swp", "web.yaml~", "4913", "README.md", "below/more.yaml"):
            (directory / name).write_text(manifest("x"))
        (directory / "new.yaml").mkdir()
        await follower.silence()


async def test_an_object_in_two_files_is_reported_once(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If two files have an object, the later counts, and the log says so once, however often other files change."""
    async with following(directory) as follower:
        (directory / "web2.yaml").write_text(manifest("b", "c"))
        await follower.until(*"abc")
        (directory / "more.yaml").write_text(manifest("d"))
        await follower.until(*"abcd")
    (warning,) = caplog.messages
    assert warning.startswith(f"{directory / 'web2.yaml'}: Service shop/b: ")
    assert f"{directory / 'web.yaml'} already" in warning


# ---- writers in the middle of it -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["w", "r+"], ids=["truncated first", "over the old contents"])
async def test_half_a_file_is_not_read(directory: Path, mode: str) -> None:
    """If a writer pauses in the middle, the file is read only once it is closed, though its half is valid YAML."""
    text = manifest("c", "d")
    async with following(directory) as follower:
        with (directory / "web.yaml").open(mode) as file:
            for half in (text[: len(text) // 2], text[len(text) // 2 :]):
                file.write(half)
                file.flush()
                await asyncio.sleep(0.5)
        await follower.until(*"cd")
    assert follower.listings == [AB, CD]


@pytest.mark.parametrize(("name", "then"), [("web.yaml", CD), ("new.yaml", AB | CD)], ids=["in place", "a new file"])
async def test_half_a_file_of_another_process_is_not_read(directory: Path, name: str, then: Names) -> None:
    """The same when a shell writes, in place or into a new file."""
    script = '{ printf "%s" "$1"; sleep 0.5; printf "%s" "$2"; } > "$3"'
    text = manifest("c", "d")
    first, second = text[: len(text) // 2], text[len(text) // 2 :]
    async with following(directory) as follower:
        shell = await asyncio.create_subprocess_exec("sh", "-c", script, "sh", first, second, directory / name)
        await shell.wait()
        await follower.until(*then)
    assert follower.listings == [AB, then]


@pytest.mark.parametrize("name", ["web.yaml", "web2.yaml"])
async def test_an_empty_file_that_is_open_is_not_read(directory: Path, name: str) -> None:
    """A new or truncated file that a writer holds open is read only once the writer closes it."""
    async with following(directory) as follower:
        with (directory / name).open("w") as file:
            await follower.silence()
            file.write(manifest("a", "b", "c"))
        await follower.until(*"abc")
    assert follower.listings == [AB, frozenset("abc")]


async def test_a_file_that_is_emptied_is_empty(directory: Path) -> None:
    """A file that is closed without contents holds nothing: that may be meant."""
    async with following(directory) as follower:
        (directory / "web.yaml").write_text("")
        await follower.until()


async def test_a_busy_file_does_not_hold_others_back(directory: Path) -> None:
    """While a file is written without a pause, a change of another file is listed in time, and not the busy file."""

    async def write_until(descriptor: int, is_over: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not is_over():
            assert time.monotonic() < end
            os.pwrite(descriptor, manifest("x").encode(), 0)
            await asyncio.sleep(DEBOUNCE / 10)

    async with following(directory) as follower:
        with (directory / "busy.yaml").open("w") as file:
            writes = itertools.count(1)
            await write_until(file.fileno(), lambda: next(writes) > 10)
            (directory / "more.yaml").write_text(manifest("c"))
            await write_until(file.fileno(), lambda: len(follower.listings) > 1)
            assert follower.listings[1:] == [frozenset("abc")]
        await follower.until(*"abcx")


async def test_no_edit_is_missed(directory: Path) -> None:
    """The last edit is listed, however the edits fall into the wait for silence."""
    async with following(directory) as follower:
        for number in range(60):
            (directory / "web.yaml").write_text(manifest(f"n{number}"))
            await asyncio.sleep(DEBOUNCE + (number % 20 - 10) * 1e-4)
            if number % 5 == 4:
                await follower.until(f"n{number}")


async def test_no_edit_is_missed_when_silence_ends(directory: Path) -> None:
    """An edit at the very end of the wait for silence is still listed."""

    def be_busy(seconds: float) -> None:
        time.sleep(seconds)

    async with following(directory) as follower:
        with (directory / "web.yaml").open("w") as file:
            file.write(manifest("c", "d"))
            file.flush()
            await asyncio.sleep(DEBOUNCE / 2)
            asyncio.get_running_loop().call_later(DEBOUNCE, file.close)
            be_busy(2 * DEBOUNCE)  # both the end of the silence and the closing are overdue, in this order
            await follower.until(*"cd")


# ---- how editors and tools save ------------------------------------------------------------------------------------


def in_place(path: Path, text: str) -> None:
    """Save as `cp` and many editors do."""
    path.write_text(text)


def by_renaming(path: Path, text: str) -> None:
    """Save beside the file, then rename over it: `sed -i`, most tools."""
    temporary = path.with_name("sedA1b2C3")
    temporary.write_text(text)
    temporary.rename(path)


def by_renaming_yaml(path: Path, text: str) -> None:
    """The same with a temporary file that looks like a manifest too."""
    temporary = path.with_name("tmp.yaml")
    temporary.write_text(text)
    temporary.rename(path)


def with_backup(path: Path, text: str) -> float:
    """Save as vim does: try whether the directory is writable, rename to a backup, write anew, delete the backup.

    Return for how many seconds the file was missing, as all ways to save do that have such a time.
    """
    probe = path.with_name("4913")
    probe.touch()
    probe.unlink()
    backup = path.with_name(f"{path.name}~")
    began = time.monotonic()
    path.rename(backup)
    time.sleep(DEBOUNCE / 3)
    with path.open("w") as file:
        missing = time.monotonic() - began
        time.sleep(LONGEST_WAIT)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        time.sleep(LONGEST_WAIT)
    backup.unlink()
    return missing


def by_deleting(path: Path, text: str) -> float:
    """Delete, then write anew at once."""
    began = time.monotonic()
    path.unlink()
    path.write_text(text)
    return time.monotonic() - began


def by_linking(path: Path, text: str) -> float:
    """Write beside it, then put a link in its place."""
    temporary = path.with_name(".new")
    temporary.write_text(text)
    began = time.monotonic()
    path.unlink()
    os.link(temporary, path)
    missing = time.monotonic() - began
    temporary.unlink()
    return missing


def by_sed(path: Path, text: str) -> None:
    """Edit the file with the real sed."""
    other = path.with_name(".text")
    other.write_text(text)
    subprocess.run(["sed", "-i", "-e", f"1r {other}", "-e", "d", path], check=True)


@pytest.mark.parametrize(
    "save", [in_place, by_renaming, by_renaming_yaml, with_backup, by_deleting, by_linking, by_sed]
)
async def test_a_file_is_saved(directory: Path, save: Callable[[Path, str], float | None]) -> None:
    """For every way to save, the old contents are listed, and then the new contents, within 200 ms.

    The best of several edits counts, as another process may be busy on this machine.  If a file is missing for so long
    that the directory may be listed without it, all begins anew.
    """
    seconds = []
    expected = [AB]
    async with following(directory) as follower:
        for names in [frozenset("cd"), frozenset("ab")] * 10:
            missing = await asyncio.to_thread(save, directory / "web.yaml", manifest(*sorted(names)))
            saved = time.monotonic()
            await follower.until(*names)
            seconds.append(follower.times[-1] - saved)
            expected.append(names)
            if missing and missing >= DEBOUNCE:
                follower.listings, expected = [names], [names]
            elif seconds[-1] < PROMISE:
                break
        await follower.silence()
    assert follower.listings == expected
    assert min(seconds) < PROMISE


async def test_a_config_map_changes(tmp_path: Path) -> None:
    """A mounted ConfigMap, with links to files by way of ..data, changes all files at once.  Keys come and go."""

    def publish(version: int, **files: str) -> None:
        """Do as the kubelet's atomic writer does."""
        data = tmp_path / f"..2026_01_0{version}"
        data.mkdir()
        for name, text in files.items():
            (data / f"{name}.yaml").write_text(text)
        (tmp_path / "..data_tmp").symlink_to(data.name)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")
        for name in files:
            if not (tmp_path / f"{name}.yaml").is_symlink():
                (tmp_path / f"{name}.yaml").symlink_to(f"..data/{name}.yaml")
        for link in tmp_path.glob("*.yaml"):
            if link.stem not in files:
                link.unlink()
        if version > 1:
            shutil.rmtree(tmp_path / f"..2026_01_0{version - 1}")

    publish(1, web=manifest("a", "b"))
    async with following(tmp_path) as follower:
        publish(2, web=manifest("c", "d"))
        await follower.until(*"cd")
        publish(3, web=manifest("a", "b"), more=manifest("c"))
        await follower.until(*"abc")
        publish(4, more=manifest("c", "d"))
        await follower.until(*"cd")
        await follower.silence()
    assert follower.listings == [AB, CD, frozenset("abc"), CD]


# ---- what goes wrong -----------------------------------------------------------------------------------------------


async def test_a_broken_file_keeps_what_it_last_said(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that no longer parses keeps its objects and is reported.  Other files, and the repaired file, continue."""
    async with following(directory) as follower:
        (directory / "web.yaml").write_text(manifest("c") + "---\nkind: [\n")
        (directory / "more.yaml").write_text(manifest("e"))
        await follower.until(*"abe")
        (directory / "web.yaml").write_text(manifest("c", "d"))
        await follower.until(*"cde")
    assert follower.listings == [AB, frozenset("abe"), frozenset("cde")]
    (warning,) = caplog.messages
    assert warning.startswith(f"{directory / 'web.yaml'}: line 10: is not YAML: ")


async def test_a_bad_object_costs_that_object_alone(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that parses counts without its bad parts, which are reported."""
    async with following(directory) as follower:
        (directory / "web.yaml").write_text(manifest("a", "b", "c").replace("10.96.0.11", "10.96.0.300"))
        await follower.until(*"ac")
    (warning,) = caplog.messages
    assert warning.startswith(f"{directory / 'web.yaml'}: Service shop/b: spec.clusterIP: ")


def move_away(directory: Path) -> None:
    """Give the directory another name."""
    directory.rename(directory.with_name("old"))


def fill(directory: Path, *names: str) -> None:
    """Write the file of the directory in place."""
    (directory / "web.yaml").write_text(manifest(*names))


async def test_a_directory_that_can_not_be_watched_yet(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a free inotify instance the warning names the limit, once, and the listing comes as soon as one is."""
    failures = iter([OSError(errno.EMFILE, "Too many open files")] * 2)

    def inotify() -> object:
        if failure := next(failures, None):
            raise failure
        return Inotify()

    monkeypatch.setattr(directory_module, "Inotify", inotify)
    monkeypatch.setattr(directory_module, "RETRY", 0.0)
    async with following(directory) as follower:
        await follower.until(*"ab")
    assert follower.listings == [AB]
    (warning,) = [each for each in caplog.messages if "can't be watched" in each]
    assert "[Errno 24] Too many open files; fs.inotify.max_user_instances" in warning


@pytest.mark.parametrize("go", [shutil.rmtree, move_away])
async def test_a_directory_that_goes_and_comes_back(directory: Path, go: Callable[[Path], None]) -> None:
    """While the directory is gone everything stays.  When it is back and filled, its contents count."""
    async with following(directory) as follower:
        go(directory)
        await follower.silence()
        await asyncio.to_thread(directory.mkdir)
        await asyncio.sleep(LONGEST_WAIT / 3)
        fill(directory, "c", "d")
        await follower.until(*"cd")
        fill(directory, "a", "b")
        await follower.until(*"ab")
    assert follower.listings == [AB, CD, AB]


async def test_a_directory_that_is_replaced_at_once(directory: Path) -> None:
    """A directory that is put in the place of another is watched there."""
    other = directory.with_name("other")
    other.mkdir()
    fill(other, "c", "d")

    def replace() -> None:
        move_away(directory)
        other.rename(directory)

    async with following(directory) as follower:
        replace()
        await follower.until(*"cd")
        fill(directory, "a", "b")
        await follower.until(*"ab")
    assert follower.listings == [AB, CD, AB]
