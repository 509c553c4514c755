"""Debian's kernels, each with an initramfs that mounts what the host shares and starts guest.sh there."""

from __future__ import annotations

import fcntl
import lzma
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from tools.debian.packages import install

CHECKOUT = Path(__file__).resolve().parents[2]
TREES = CHECKOUT / ".trees"
MMDEBSTRAP = CHECKOUT / "tools" / "debian" / "mmdebstrap.sh"
MODULES = ("virtio_pci", "virtio_console", "virtio_rng", "9pnet_virtio", "9p", "overlay")
"""The modules that a machine needs until it has /lib/modules."""

INIT = """\
#!/bin/busybox sh
/bin/busybox mount -t proc none /proc
mount -t devtmpfs none /dev
for module in $(cat /list); do insmod $module; done
mkdir -p /lower /upper /new
share() { mount -t 9p -o trans=virtio,version=9p2000.L,msize=500000,cache=loose,$3 $1 $2; }
share root /lower ro
mount -t tmpfs none /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work none /new
mkdir -p /new/usr/lib/modules /new/run /new/vm
share modules /new/usr/lib/modules ro
share checkout /new/src rw
mount -t 9p -o trans=virtio,version=9p2000.L,msize=500000 vm /new/vm
exec switch_root /new /bin/bash /src/tools/vm/guest.sh
"""
"""The first program of a machine.  busybox has each command, and finds itself below /proc.  Writes to the root of the
tree go to memory."""


class KernelFiles(NamedTuple):
    """The files of a kernel: its image, a folder with its modules, and busybox for the initramfs."""

    image: Path
    modules: Path
    busybox: Path

    def initramfs(self) -> bytes:
        """Return an archive in cpio's format "newc" (the kernel's early-userspace/buffer-format.rst)."""
        modules = {f"/{each.name.partition('.ko')[0]}.ko": _unpacked(each) for each in self._first_modules()}
        files = {
            "/init": INIT.encode(),
            "/bin/busybox": self.busybox.read_bytes(),
            "/list": "\n".join(modules).encode(),
        }
        folders = [_entry(name, 0o40755) for name in ("/bin", "/dev", "/proc")]
        programs = [_entry(name, 0o100755, content) for name, content in (files | modules).items()]
        return b"".join([*folders, *programs, _entry("TRAILER!!!", 0)])

    def _first_modules(self) -> Iterator[Path]:
        """The files of `MODULES` and of the modules that these need, in the order in which they are loaded."""
        (release,) = self.modules.iterdir()
        command = ["/sbin/modprobe", "--dirname", str(self.modules.parents[1]), "--set-version", release.name]
        for name in MODULES:
            done = subprocess.run([*command, "--show-depends", name], check=True, stdout=subprocess.PIPE, text=True)
            yield from (Path(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("insmod "))


def provide_kernel(suite: str, architecture: str) -> KernelFiles:
    """Unpack the kernel of a release of Debian, unless it is there already.

    Raises:
        subprocess.CalledProcessError: the packages can't be fetched.
    """
    folder = TREES / f"kernel-{suite}-{architecture}"
    TREES.mkdir(exist_ok=True)
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            install({"depmod": "kmod"})
            say(f"unpacking the kernel of Debian {suite} ({architecture})")
            _unpack(folder.with_suffix(".part"), suite, architecture)
            folder.with_suffix(".part").rename(folder)
    return KernelFiles(folder / "vmlinuz", folder / "lib" / "modules", folder / "busybox")


def _unpack(folder: Path, suite: str, architecture: str) -> None:
    tree = folder.with_suffix(".tree")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(tree, ignore_errors=True)
    command = ["--quiet", "--variant=extract", f"--include=linux-image-{architecture},busybox-static"]
    # An old release's list of packages isn't signed anew
    command += [f"--architectures={architecture}", '--aptopt=Acquire::Check-Valid-Until "false"']
    subprocess.run([MMDEBSTRAP, *command, suite, tree], check=True)
    (folder / "lib").mkdir(parents=True)
    modules = next(each for each in (tree / "usr/lib/modules", tree / "lib/modules") if each.exists())
    modules.rename(folder / "lib" / "modules")
    (release,) = (folder / "lib" / "modules").iterdir()
    # Newer releases have it beside its modules.
    next(chain((tree / "boot").glob("vmlinuz-*"), release.glob("vmlinuz"))).rename(folder / "vmlinuz")
    subprocess.run(["/sbin/depmod", "--basedir", folder, release.name], check=True)
    next(path for path in (tree / "usr/bin/busybox", tree / "bin/busybox") if path.is_file()).rename(folder / "busybox")
    shutil.rmtree(tree)


def _unpacked(module: Path) -> bytes:
    content = module.read_bytes()
    return lzma.decompress(content) if module.suffix == ".xz" else content


def _entry(name: str, mode: int, content: bytes = b"") -> bytes:
    encoded = name.lstrip("/").encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
    header = b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
    return header + bytes(-len(header) % 4) + content + bytes(-len(content) % 4)


def say(what: str) -> None:
    """Print a step that takes a while."""
    print(f"vm: {what}", file=sys.stderr, flush=True)  # noqa: T201
