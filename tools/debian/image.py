"""Builds what examples/deploy/Containerfile says, without a container engine, and runs commands in the result.

    python -m tools.debian.image nftproxy --version                     builds it if needed, then runs the command in it
    python -m tools.debian.image --user 0 nftproxy render /tmp/examples/cluster-ip/manifests --node node-a

Each stage is a tree of Debian that mmdebstrap unpacks, in which the stage's RUN and COPY lines are followed to the
letter; the last one's tree is .trees/image, 310 MB.  It is built again when the Containerfile or pyproject.toml have
changed, not for every change of the package.  Commands run in it as runc would start them in a pod of daemonset.yaml:
in the caller's network namespace, with a root that is read-only, as the image's user, with CAP_NET_ADMIN as the one
capability within reach, none of them ambient, and no new privileges.  Needs root, and a network to build it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[2]
CONTAINERFILE = CHECKOUT / "examples" / "deploy" / "Containerfile"
TREE = CHECKOUT / ".trees" / "image"
MMDEBSTRAP = CHECKOUT / "tools" / "debian" / "mmdebstrap.sh"
STAMP = "etc/nftproxy-image"  # in a tree that is complete: what it was built from
SUITES = {"debian:trixie-slim": "trixie"}

CLONE_NEWNS = 0x20000  # linux/sched.h
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 1, 32, 4096, 16384, 1 << 18, 2  # linux/mount.h
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
PR_SET_KEEPCAPS, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 8, 24, 38  # linux/prctl.h
CAP_NET_ADMIN, CAP_LAST, CAPABILITY_VERSION_3 = 12, 40, 0x20080522  # linux/capability.h


class Line(NamedTuple):
    """An instruction of a Containerfile, and what follows it."""

    instruction: str
    text: str


Stage = list[Line]


def stages(text: str) -> list[Stage]:
    """The instructions of each stage of a Containerfile, FROM first; comments left out, continued lines joined."""
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ")
    found: list[Stage] = []
    for line in kept.splitlines():
        if line.startswith("FROM"):
            found.append([])
        if line.strip():
            found[-1].append(Line(*line.split(maxsplit=1)))
    return found


def packages(stage: Stage) -> set[str]:
    """What a stage installs with apt."""
    commands = "\n".join(line.text for line in stage if line.instruction == "RUN")
    lists: list[str] = re.findall(r"apt-get install((?: [-\w.+]+)+)", commands)
    return {name for names in lists for name in names.split() if not name.startswith("-")}


def setting(stage: Stage, instruction: str) -> str:
    """What follows the last line of a stage with an instruction."""
    return [line.text for line in stage if line.instruction == instruction][-1]


# ---- building ------------------------------------------------------------------------------------------------------


def is_built() -> bool:
    """Whether the tree is there and as the Containerfile says."""
    return (TREE / STAMP).exists() and (TREE / STAMP).read_text() == _recipe()


def _recipe() -> str:
    return CONTAINERFILE.read_text() + (CHECKOUT / "pyproject.toml").read_text()


def build() -> None:
    """Make the tree, unless it is there already."""
    TREE.parent.mkdir(exist_ok=True)
    with (TREE.parent / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_built():
            return
        trees: dict[str, Path] = {}
        for stage in stages(CONTAINERFILE.read_text()):
            base, _, name = setting(stage, "FROM").partition(" AS ")
            trees[name] = TREE.with_name(f"image-{name or 'last'}")
            _unpack(SUITES[base], trees[name])
            for line in stage:
                _follow(line, trees, trees[name])
        (trees[""] / STAMP).write_text(_recipe())
        shutil.rmtree(TREE, ignore_errors=True)
        trees.pop("").rename(TREE)
        for tree in trees.values():
            shutil.rmtree(tree)


def _unpack(suite: str, tree: Path) -> None:
    shutil.rmtree(tree, ignore_errors=True)
    _say(f"unpacking Debian ({suite})")
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]  # as "slim" is
    subprocess.run([MMDEBSTRAP, "--quiet", "--variant=apt", *excluded, suite, tree], check=True)
    shutil.copy("/etc/resolv.conf", tree / "etc")


def _follow(line: Line, trees: dict[str, Path], tree: Path) -> None:
    if line.instruction == "RUN":
        _say(line.text)
        _run_in(tree, line.text)
    elif line.instruction == "COPY":
        _say(f"copying {line.text}")
        _copy(line.text.split(), trees, tree)
    elif line.instruction not in ("FROM", "ENV", "USER", "ENTRYPOINT"):
        raise NotImplementedError(line)


def _copy(words: list[str], trees: dict[str, Path], tree: Path) -> None:
    """Of a directory the contents go to the target; files go into a target that ends in a slash."""
    source = trees[words.pop(0).removeprefix("--from=")] if words[0].startswith("--from=") else CHECKOUT
    *names, target = words
    for name in names:
        file = source / name.lstrip("/")
        to = tree / target.strip("/") / (file.name if file.is_file() else "")
        to.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "--archive", "--no-target-directory", file, to], check=True)


def _run_in(tree: Path, command: str) -> None:
    """Follow a RUN line, as root.

    The machine's certificates are used, as it may have to trust its own: a copy, since packages write there.
    """
    script = """
    for dir in /dev /proc; do mount --rbind "$dir" "$0$dir"; done
    if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
        mkdir -p "$0/etc/ssl/certs"; mount -t tmpfs tmpfs "$0/etc/ssl/certs"
        cp --archive --dereference /etc/ssl/certs/. "$0/etc/ssl/certs"
    fi
    exec chroot "$0" /bin/sh -ec "$1"
    """
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "http", "HTTP"))}
    system = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script, tree, command],
        env=kept | system,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stdout}")


def _say(what: str) -> None:
    print(f"image: {what}", file=sys.stderr)  # noqa: T201 -- it takes a while


# ---- running -------------------------------------------------------------------------------------------------------


def run(*command: str, user: int | None = None, seconds: int = 60) -> subprocess.CompletedProcess[str]:
    """Run a command in the image, which must be built; after so many seconds it is told to stop."""
    options = [] if user is None else ["--user", str(user)]
    script = ["timeout", str(seconds), sys.executable, "-m", "tools.debian.image", *options, *command]
    return subprocess.run(script, cwd=CHECKOUT, capture_output=True, text=True, timeout=100, check=False)


def _enter(user: int, command: list[str]) -> None:
    """Become a command in the image."""
    path = setting(stages(CONTAINERFILE.read_text())[-1], "ENV").removeprefix("PATH=")
    _change_root()
    _lose_rights(user)
    os.environ.clear()
    os.environ["PATH"] = path
    os.execvp(command[0], command)


def _change_root() -> None:
    """By pivot_root, as after a chroot nobody can make user namespaces; /tmp has examples/ and can be written to."""
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: str, target: Path, kind: str | None, flags: int) -> None:
        _check(libc.mount(source.encode(), str(target).encode(), kind and kind.encode(), flags, None))

    _check(libc.unshare(CLONE_NEWNS))
    mount("none", Path("/"), None, MS_REC | MS_PRIVATE)
    mount(str(TREE), TREE, None, MS_BIND)
    for name in ("dev", "proc"):
        mount(f"/{name}", TREE / name, None, MS_BIND | MS_REC)
    mount("tmpfs", TREE / "tmp", "tmpfs", 0)
    for name in ("old", "examples"):
        (TREE / "tmp" / name).mkdir()
    mount(str(CHECKOUT / "examples"), TREE / "tmp" / "examples", None, MS_BIND)
    mount("none", TREE, None, MS_REMOUNT | MS_BIND | MS_RDONLY)
    _check(libc.syscall(SYS_PIVOT_ROOT, str(TREE).encode(), str(TREE / "tmp" / "old").encode()))
    os.chdir("/")
    _check(libc.umount2(b"/tmp/old", MNT_DETACH))


def _lose_rights(user: int) -> None:
    """All but CAP_NET_ADMIN, which is permitted now; who isn't root loses it if the program's file doesn't have it."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(CAP_LAST + 1):
        if capability != CAP_NET_ADMIN:
            _check(libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0))
    _check(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    header, only = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), 1 << CAP_NET_ADMIN
    _check(libc.capset(header, (ctypes.c_uint32 * 6)(only, only, 0, 0, 0, 0)))  # effective, permitted, inheritable
    _check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main(arguments: list[str]) -> None:
    """Build the image, and become a command in it if there is one."""
    build()
    if arguments[:1] == ["--user"]:
        _enter(int(arguments[1]), arguments[2:])
    elif arguments:
        user, _, _ = setting(stages(CONTAINERFILE.read_text())[-1], "USER").partition(":")
        _enter(int(user), arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
