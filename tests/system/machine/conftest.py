"""Features of a kernel that few machines have, and a virtual machine of tools/vm has."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tools.vm.machine import OPTIONS


def load_module(*names: str) -> None:
    """Load modules of the kernel, or skip the test where it has none of that name."""
    if os.geteuid() != 0:
        pytest.skip("loading a module takes root")
    if shutil.which("modprobe", path="/usr/sbin:/sbin") is None:
        pytest.skip("modprobe is missing; a virtual machine has it (tools/vm)")
    for name in names:
        if subprocess.run(["modprobe", name], capture_output=True, check=False).returncode:
            pytest.skip(f"this kernel has no module {name}; a virtual machine has (tools/vm)")


def require_own_machine() -> None:
    """Skip the test unless it may do as it likes with the whole machine."""
    if OPTIONS not in os.environ:
        pytest.skip("it changes the whole machine, and runs in a virtual one (tools/vm)")
