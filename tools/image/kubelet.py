"""Start the containers of a pod's template as a kubelet does, by requests to the runtime.

The rules are those of pkg/kubelet/kuberuntime in Kubernetes 1.36: `allowPrivilegeEscalation: false` sets
no_new_privs, a container's seccomp profile is the pod's if it has none, cpu requests become shares of 1,024 a core, and
unprivileged containers get the default masked and read-only paths.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until
from tools.image.build import NAME
from tools.image.containerd import Containerd
from tools.image.cri import CONTAINER_NAMESPACE, EXITED, NODE_NAMESPACE, POD_NAMESPACE, RUNTIME_DEFAULT

# Those of a kubelet: k8s.io/kubernetes/pkg/securitycontext/util.go.
MASKED = (
    "/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
    "/sys/devices/virtual/powercap",
)  # fmt: skip
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

WRITABLE = ("/tmp", "/run/nftproxy")
"""The paths of the template's emptyDirs."""

SYSTEM_NODE_CRITICAL = -997
"""The oom score of pods of that class (pkg/kubelet/qos)."""
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


class Pod:
    """A pod on the node's network, whose containers are started in turn."""

    def __init__(self, engine: Containerd, template: dict[str, Any], name: str) -> None:
        self._runtime = engine.runtime
        self._template = template
        self._logs = engine.directory / "logs" / name
        self._logs.mkdir(parents=True)
        self._namespaces = {"network": NODE_NAMESPACE, "pid": CONTAINER_NAMESPACE, "ipc": POD_NAMESPACE}
        containers = [*template.get("initContainers", ()), *template["containers"]]
        context = {
            "namespace_options": self._namespaces,
            "privileged": any(each.get("securityContext", {}).get("privileged", False) for each in containers),
            "seccomp": {"profile_type": RUNTIME_DEFAULT},
        }
        self._sandbox = {
            "metadata": {"name": name, "uid": name, "namespace": "kube-system"},
            "log_directory": str(self._logs),
            "linux": {"cgroup_parent": f"/{engine.directory.name}", "security_context": context},
        }
        self._id = self._runtime.call("RunPodSandbox", config=self._sandbox).pod_sandbox_id

    def start(
        self, container: dict[str, Any], *, args: list[str], mounts: dict[str, Path], env: dict[str, str] | None = None
    ) -> Container:
        """Start a container of the template with these arguments.  `mounts` are read-only, except for emptyDirs."""
        config = {
            "metadata": {"name": container["name"]},
            "image": {"image": NAME},
            "command": container.get("command", []),
            "args": args,
            "envs": [{"key": key, "value": value} for key, value in (env or {}).items()],
            "mounts": [
                {"container_path": inside, "host_path": str(path), "readonly": inside not in WRITABLE}
                for inside, path in mounts.items()
            ],
            "log_path": f"{container['name']}.log",
            "linux": {"resources": _resources(container), "security_context": self._security(container)},
        }
        made = self._runtime.call(
            "CreateContainer", pod_sandbox_id=self._id, config=config, sandbox_config=self._sandbox
        )
        self._runtime.call("StartContainer", container_id=made.container_id)
        return Container(self._runtime, made.container_id, self._logs / f"{container['name']}.log")

    def stop(self) -> None:
        """End every container.  They are removed with the runtime."""
        self._runtime.call("StopPodSandbox", pod_sandbox_id=self._id)

    def _security(self, container: dict[str, Any]) -> dict[str, Any]:
        given = container["securityContext"]
        capabilities = given.get("capabilities", {})
        is_privileged = given.get("privileged", False)
        return {
            "capabilities": {
                "add_capabilities": capabilities.get("add", []),
                "drop_capabilities": capabilities.get("drop", []),
            },
            "privileged": is_privileged,
            "namespace_options": self._namespaces,
            "run_as_user": {"value": given["runAsUser"]},
            "run_as_group": {"value": given["runAsGroup"]},
            "readonly_rootfs": given.get("readOnlyRootFilesystem", False),
            "no_new_privs": given.get("allowPrivilegeEscalation") is False,
            "masked_paths": [] if is_privileged else MASKED,
            "readonly_paths": [] if is_privileged else READ_ONLY,
            "seccomp": {"profile_type": RUNTIME_DEFAULT},
        }


class Container:
    """A container that was started."""

    def __init__(self, runtime: Any, name: str, log: Path) -> None:
        self._runtime = runtime
        self._id = name
        self._log = log

    def log(self) -> str:
        """Return its output, without the runtime's time stamps."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return "\n".join(line.split(" ", 3)[3] for line in lines)

    def await_line(self, text: str) -> None:
        """Wait until it has written this.

        Raises:
            AssertionError: it ends without, or doesn't in time.
        """
        wait_until(lambda: text in self.log() or self._has_ended(), self.log, pause=0.1)
        assert text in self.log(), self.log()

    def await_end(self) -> int:
        """Wait for the container to end, and return its exit status.

        Raises:
            AssertionError: it doesn't in time.
        """
        wait_until(self._has_ended, self.log, pause=0.1)
        return int(self._status().exit_code)

    def run(self, *command: str) -> tuple[int, str]:
        """Run a command in it, and return its exit status and output."""
        done = self._runtime.call("ExecSync", container_id=self._id, cmd=command, timeout=60)
        return done.exit_code, (done.stdout + done.stderr).decode()

    def stop(self, seconds: int) -> int:
        """Stop it, by force after some seconds, and return its exit status."""
        self._runtime.call("StopContainer", container_id=self._id, timeout=seconds)
        return self.await_end()

    def _has_ended(self) -> bool:
        return bool(self._status().state == EXITED)

    def _status(self) -> Any:
        return self._runtime.call("ContainerStatus", container_id=self._id).status


def _resources(container: dict[str, Any]) -> dict[str, int]:
    resources = container["resources"]
    return {
        "cpu_shares": int(resources["requests"]["cpu"].removesuffix("m")) * 1024 // 1000,
        "memory_limit_in_bytes": _bytes(resources["limits"]["memory"]),
        "oom_score_adj": SYSTEM_NODE_CRITICAL,
    }


def _bytes(quantity: str) -> int:
    number, unit = re.fullmatch(r"([0-9]+)([KMG]i)", quantity, re.ASCII).groups()  # type: ignore[union-attr]
    return int(number) * _UNITS[unit]
