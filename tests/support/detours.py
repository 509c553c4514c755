"""`nftproxy run` where it reaches an API server by detours: through proxies, or with a log that nobody reads.

The server has an address that isn't loopback, as no proxy is used for loopback addresses.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import yaml

from tests.support.objects import endpoint, endpoint_slice, service
from tests.support.processes import CHECKOUT, KilledAtEnd, kill
from tests.support.waiting import wait_until
from tools.kubernetes.layout import CONTROL, CONTROL_PORT

PLACE = f"{CONTROL}:{CONTROL_PORT}"
HTTP, SOCKS = f"http://{CONTROL}:3128", f"socks5://{CONTROL}:1080"
NODE = "node-a"
USER_AND_NETWORK = ("--user", "--net")
CONFIG = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: 10.1.0.0/16
clientConnection: {{kubeconfig: {kubeconfig}}}
logging: {{verbosity: {verbosity}}}
"""


class Detour(NamedTuple):
    """A way to the API server, with the variables of the agent's environment and the way that `status` names."""

    variables: Mapping[str, str]
    way: str
    proxy: str = ""
    """The program of the proxy that has the connections."""
    verbosity: int = 0
    is_log_stuck: bool = False
    """Whether nobody reads the agent's standard error, a pipe that is full after a line."""


_SERVER = f"https://{PLACE}"
_THROUGH = f"{_SERVER} through the proxy {{}} (HTTPS_PROXY)"
DETOURS = {
    "around a proxy": Detour({"HTTPS_PROXY": HTTP, "NO_PROXY": "172.16.0.0/12,fd00::/8"}, _SERVER),
    "through a proxy by HTTP": Detour({"HTTPS_PROXY": HTTP}, _THROUGH.format(HTTP), "tinyproxy"),
    "through a proxy by SOCKS": Detour({"HTTPS_PROXY": SOCKS}, _THROUGH.format(SOCKS), "microsocks"),
    "with its log stuck": Detour({}, _SERVER, verbosity=4, is_log_stuck=True),
}


class Company(KilledAtEnd):
    """Namespaces in which an API server, proxies and an agent run.  A context manager.

    Args:
        directory: for files.
        namespaces: the options of unshare(1) and nsenter(1) for the namespaces.
    """

    def __init__(self, directory: Path, namespaces: Sequence[str] = USER_AND_NETWORK) -> None:
        self._directory = directory
        self._namespaces = namespaces

    def __enter__(self) -> Self:
        mapped = ["--map-root-user"] if "--user" in self._namespaces else []
        self._process = subprocess.Popen(["unshare", *self._namespaces, *mapped, "sleep", "infinity"])
        comm = Path(f"/proc/{self._process.pid}/comm")
        wait_until(lambda: comm.read_text() == "sleep\n", lambda: "this machine makes no user namespaces")
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "address", "add", f"{CONTROL}/32", "dev", "lo")
        return self

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process in the namespaces, with options of `subprocess.Popen`."""
        inside = ["nsenter", *self._namespaces, "--target", str(self._process.pid), "setpriv", "--pdeathsig", "KILL"]
        return subprocess.Popen([*inside, *command], **options)

    def run(self, *command: str, given: str = "") -> str:
        """Run a command in the namespaces, and return its output, errors too."""
        process = self.start(command, stdin=-1, stdout=-1, stderr=subprocess.STDOUT, text=True)
        return str(process.communicate(given)[0])

    @contextmanager
    def running(self, *command: str, ready: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
        """Run a program that another command finds ready, and kill it in the end."""
        process = self.start(command, **options)
        try:
            wait_until(partial(self._succeeds, ready), lambda: f"{command[0]} isn't ready")
            yield process
        finally:
            kill(process)

    def _succeeds(self, command: Sequence[str]) -> bool:
        return self.start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait() == 0

    def serve(self, kubeconfig: Path, detour: Detour, address: str) -> str:
        """Run an agent with a detour, add a Service of this address, and return what the agent's way is.

        Raises:
            AssertionError: the agent doesn't serve the Service, or doesn't end by SIGTERM.
        """
        with ExitStack() as stack:
            self._start_proxies(stack)
            agent, log = self._start_agent(stack, kubeconfig, detour)
            self._add_service(kubeconfig, address)

            def is_served() -> bool:
                assert agent.poll() is None, log()
                return f"{address} . tcp . 80" in self.run("nft", "list", "map", "ip", "nftproxy", "services")

            wait_until(is_served, log, pause=0.1)
            assert self._used_proxies() == {detour.proxy} - {""}
            status = json.loads(self.run(sys.executable, "-m", "nftproxy", "status", *self._socket, "-o", "json"))
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(60) == 0, log()
            return str(status["agent"]["source"])

    @property
    def _socket(self) -> tuple[str, str]:
        return "--agent-socket", str(self._directory / "agent.sock")

    def _start_proxies(self, stack: ExitStack) -> None:
        """Start a proxy by HTTP and one by SOCKS, which take connections to any server."""
        config = self._directory / "tinyproxy.conf"
        config.write_text(f"Port 3128\nListen {CONTROL}\nLogLevel Connect\n")
        for port, *command in (
            ("3128", "tinyproxy", "-d", "-c", str(config)),
            ("1080", "microsocks", "-i", CONTROL, "-p", "1080"),
        ):
            ready = ("bash", "-c", f"</dev/tcp/{CONTROL}/{port}")
            log = stack.enter_context(self._log_of(command[0]).open("w"))
            stack.enter_context(self.running(*command, ready=ready, stdout=log, stderr=log))

    def _log_of(self, program: str) -> Path:
        return self._directory / f"{program}.log"

    def _used_proxies(self) -> set[str]:
        """The proxies that have made a connection to the API server, by their logs."""
        return {name for name in ("tinyproxy", "microsocks") if PLACE in self._log_of(name).read_text()}

    def _start_agent(self, stack: ExitStack, kubeconfig: Path, detour: Detour) -> tuple[subprocess.Popen[Any], Any]:
        config, log = self._directory / "config.yaml", self._directory / "agent.log"
        config.write_text(CONFIG.format(kubeconfig=kubeconfig, verbosity=detour.verbosity))
        command = [sys.executable, "-m", "nftproxy", "run", "--config", str(config), "--hostname-override", NODE]
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        environment |= {"PYTHONPATH": str(CHECKOUT), **detour.variables}
        stderr: Any = stack.enter_context(log.open("w"))
        if detour.is_log_stuck:
            reading, stderr = os.pipe()
            stack.callback(os.close, reading)
            stack.callback(os.close, stderr)
            fcntl.fcntl(stderr, fcntl.F_SETPIPE_SZ, 4096)
        agent = self.start([*command, *self._socket], env=environment, stderr=stderr)
        stack.callback(kill, agent)
        return agent, log.read_text

    def _add_service(self, kubeconfig: Path, address: str) -> None:
        """Create a Service with an endpoint."""
        name = "s" + address.replace(".", "-")
        where: dict[str, Any] = {"namespace": "default", "ports": ["http:80/TCP"]}
        created = service(name, vips=[address], **where)
        self._post(kubeconfig, "/api/v1/namespaces/default/services", created)
        created = endpoint_slice(name, endpoint("10.1.0.4", "", "ready"), service=name, **where)
        self._post(kubeconfig, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", created)

    def _post(self, kubeconfig: Path, path: str, created: Mapping[str, object]) -> None:
        document = yaml.safe_load(kubeconfig.read_text())
        (cluster,), (user,) = document["clusters"], document["users"]
        authority = self._directory / "authority.crt"
        if data := cluster["cluster"].get("certificate-authority-data"):
            authority.write_bytes(base64.b64decode(data))
        else:
            authority.write_bytes(Path(cluster["cluster"]["certificate-authority"]).read_bytes())
        options = ["--silent", "--show-error", "--fail-with-body", "--noproxy", "*", "--cacert", str(authority)]
        options += ["--header", f"Authorization: Bearer {user['user']['token']}"]
        options += ["--header", "Content-Type: application/json", "--data", "@-"]

        def is_created() -> bool:
            said.append(self.run("curl", *options, _SERVER + path, given=json.dumps(created)))
            return ('"kind":' in said[-1] and '"Status"' not in said[-1]) or '"AlreadyExists"' in said[-1]

        said: list[str] = []
        wait_until(is_created, lambda: said[-1], pause=0.2)  # the namespace comes soon after a server's first start
