"""Boots a virtual machine, and runs a command in it."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.debian.packages import install
from tools.support.results import read_results, record
from tools.vm.kernels import CHECKOUT, TREES, provide_kernel, say

DEBIAN = CHECKOUT / "tools" / "debian" / "debian.sh"
PROGRAMS = {"amd64": "qemu-system-x86_64", "arm64": "qemu-system-aarch64"}
PACKAGES = {"qemu-system-x86_64": "qemu-system-x86", "qemu-system-aarch64": "qemu-system-arm"}
"""Debian's packages by the programs that they have."""
HARDWARE = {
    # Page tables of five levels only cost time.
    "amd64": ["-machine", "q35", "-cpu", "max,la57=off"],
    "arm64": ["-machine", "virt", "-cpu", "cortex-a72"],
}
CONSOLES = {"amd64": "ttyS0", "arm64": "ttyAMA0"}
NATIVE = "amd64"
MEMORY = "1536"  # MiB
OPTIONS = "NFTPROXY_VM"
"""The environment variable by which a command knows the options of its machine."""
LAST_LINES = 40
"""Lines of the kernel's log that are printed when a machine ends without a result."""
BOOTS = 3
"""How often a machine is booted, if its kernel dies before the command begins.

Kernels that start on an emulated processor beside other load die now and then: in the test of their timer, or when two
processors meet code that is being patched.
"""


@dataclass(frozen=True)
class Machine:
    """A machine with the programs of one release of Debian and the kernel of one, perhaps another.

    Attributes:
        suite: the code name of the programs' release.
        kernel: the code name of the kernel's release.
        architecture: Debian's name of it.
        systemd: whether the first process is systemd.
    """

    suite: str
    kernel: str
    architecture: str = NATIVE
    systemd: bool = False

    def run(self, command: Iterable[str], seconds: float) -> int:
        """Boot, run the command as root in /src, which is this checkout, and power off.

        Results that it records (tools.support) are recorded here.

        Args:
            command: a program and its arguments.  Its output goes to our standard output.
            seconds: the machine is ended after these.

        Returns:
            the exit status of the command, 124 when its time is over, 125 when the machine ended without a result.

        Raises:
            subprocess.CalledProcessError: something that a machine is made of can't be fetched.
        """
        tree = self._provide_tree()
        with tempfile.TemporaryDirectory(prefix="nftproxy-vm-") as name:
            share = Path(name)
            (share / "command").write_text(f"export {OPTIONS}={shlex.quote(self.options())}\n{shlex.join(command)}\n")
            (share / "init").write_text("systemd" if self.systemd else "command")
            say(f"booting Debian {self.suite} with the kernel of {self.kernel} ({self.architecture})")
            status = self._boot(tree, share, seconds)
            if results := read_results(share / "results.json"):
                record(*results)
            return status

    def _boot(self, tree: Path, share: Path, seconds: float) -> int:
        status = share / "status"
        for _ in range(BOOTS):
            try:
                subprocess.run(self._qemu(tree, share), check=True, stdin=subprocess.DEVNULL, timeout=seconds)
            except subprocess.TimeoutExpired:
                say(f"ended, as it took longer than {seconds:.0f} s")
                return 124
            if status.exists():
                return int(status.read_text())
            say("it ended without a result; the end of its kernel's log:")
            say("\n".join((share / "console").read_text(errors="replace").splitlines()[-LAST_LINES:]))
            if (share / "begun").exists():
                break
        return 125

    def options(self) -> str:
        """The options of `python -m tools.vm` for such a machine."""
        options = {"--suite": self.suite}
        if self.kernel != self.suite:
            options["--kernel"] = self.kernel
        if self.architecture != NATIVE:
            options["--architecture"] = self.architecture
        flags = ["--systemd"] * self.systemd
        return shlex.join([text for pair in options.items() for text in pair] + flags)

    def _provide_tree(self) -> Path:
        name = self.suite if self.architecture == NATIVE else f"{self.suite}-{self.architecture}"
        subprocess.run([DEBIAN, name], check=True)
        return TREES / name

    def _qemu(self, tree: Path, share: Path) -> list[str | Path]:
        program = PROGRAMS[self.architecture]
        install({program: PACKAGES[program]})
        files = provide_kernel(self.kernel, self.architecture)
        (share / "initramfs").write_bytes(files.initramfs())
        settings = f"console={CONSOLES[self.architecture]} panic=-1 loglevel=4"
        command: list[str | Path] = ["setpriv", "--pdeathsig", "KILL", program, *HARDWARE[self.architecture]]
        command += ["-accel", "tcg,thread=multi", "-smp", "2", "-m", MEMORY]
        command += ["-nodefaults", "-no-reboot", "-display", "none", "-device", "virtio-rng-pci"]
        command += ["-kernel", files.image, "-initrd", share / "initramfs", "-append", settings]
        command += ["-serial", f"file:{share / 'console'}", "-device", "virtio-serial-pci"]
        command += ["-chardev", "stdio,id=output,signal=off", "-device", "virtconsole,chardev=output"]
        for tag, folder, is_read_only in (
            ("root", tree, True),
            ("modules", files.modules, True),
            ("checkout", CHECKOUT, False),
            ("vm", share, False),
        ):
            readonly = "on" if is_read_only else "off"
            command += ["-fsdev", f"local,id={tag},path={folder},security_model=none,readonly={readonly}"]
            command += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        return command
