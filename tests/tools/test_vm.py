"""Virtual machines: options, initramfs, and a missing program.  `tox run -e kernels` boots machines."""

from __future__ import annotations

import lzma
import subprocess
from pathlib import Path

import pytest

from tools.debian.packages import install
from tools.vm import kernels
from tools.vm.kernels import KernelFiles
from tools.vm.machine import Machine


def entries(archive: bytes) -> dict[str, bytes]:
    """The files of an archive in cpio's format "newc"."""
    found: dict[str, bytes] = {}
    place = 0
    while True:
        assert archive[place : place + 6] == b"070701"
        fields = [int(archive[place + 6 + 8 * number : place + 14 + 8 * number], 16) for number in range(13)]
        name_end = place + 110 + fields[11]
        content = name_end + -name_end % 4
        name = archive[place + 110 : name_end - 1].decode()
        if name == "TRAILER!!!":
            return found
        found[name] = archive[content : content + fields[6]]
        place = content + fields[6] + -fields[6] % 4


def test_the_initramfs_has_the_modules_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has busybox, the first program, and each module as it is without compression, in the order of its list."""
    plain, packed = tmp_path / "a.ko", tmp_path / "b.ko.xz"
    plain.write_bytes(b"one")
    packed.write_bytes(lzma.compress(b"two!"))
    (tmp_path / "busybox").write_bytes(b"box")
    monkeypatch.setattr(KernelFiles, "_first_modules", lambda _: iter([plain, packed]))
    found = entries(KernelFiles(tmp_path / "vmlinuz", tmp_path, tmp_path / "busybox").initramfs())
    assert found == {
        "bin": b"",
        "dev": b"",
        "proc": b"",
        "init": kernels.INIT.encode(),
        "bin/busybox": b"box",
        "list": b"/a.ko\n/b.ko",
        "a.ko": b"one",
        "b.ko": b"two!",
    }


def test_a_machine_names_its_options() -> None:
    """The recorded command has the options that make the same machine."""
    assert Machine("bookworm", "bullseye").options() == "--suite bookworm --kernel bullseye"
    assert Machine("trixie", "trixie", systemd=True).options() == "--suite trixie --systemd"
    assert Machine("trixie", "trixie", architecture="arm64").options() == "--suite trixie --architecture arm64"


@pytest.mark.parametrize(
    ("script", "status", "boots"),
    [
        ("true", 125, 3),
        ("[ -e first ] && touch begun && echo 7 >status; touch first", 7, 2),
        ("touch begun", 125, 1),
    ],
    ids=["dies in each boot", "dies in the first boot", "dies with the command"],
)
def test_a_kernel_that_dies_early_is_booted_again(
    script: str, status: int, boots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine is booted again, two times at most, unless its command has begun."""
    booted = []

    def machine(_: Machine, __: Path, share: Path) -> list[str]:
        booted.append(share)
        return ["sh", "-c", f"cd {share}; touch console; {script}; true"]

    monkeypatch.setattr(Machine, "_qemu", machine)
    monkeypatch.setattr(Machine, "_provide_tree", lambda _: Path())
    assert (Machine("trixie", "trixie").run(["true"], 60), len(booted)) == (status, boots)


def test_a_missing_package_is_named_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """If apt can't install a missing package, the program ends with the package's name."""

    def fail(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(100, command)

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(SystemExit, match=r"^missing, and can't be installed: qemu-system-x86 \("):
        install({"no-such-program": "qemu-system-x86"})
