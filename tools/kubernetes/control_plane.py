"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler, as processes of ours."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trustme

from nftproxy.sources.documents import to_yaml
from tests.support.processes import kill
from tests.support.waiting import wait_until
from tools.kubernetes.binaries import Binaries
from tools.kubernetes.layout import CONTROL, CONTROL_PORT, FIRST_SERVICE, SERVICES, SERVICES6

PATIENCE = 300.0
"""Seconds for a program to become ready on a busy machine."""
ADMINISTRATOR = "administrator"
ETCD, ETCD_PEERS = "http://127.0.0.1:2379", "http://127.0.0.1:2380"

Start = Callable[..., "subprocess.Popen[Any]"]


class RealControlPlane:
    """A control plane, from `start` on, until `close`.

    Args:
        binaries: the programs.
        directory: certificates, kubeconfigs, logs and etcd's data go here.
        users: names of users beside the administrator, each with its groups.
        start: starts a process in the cluster's namespace, with a command and options of `subprocess.Popen`.
    """

    def __init__(self, binaries: Binaries, directory: Path, users: dict[str, str], start: Start) -> None:
        self.binaries = binaries
        self.directory = directory
        self.url = f"https://{CONTROL}:{CONTROL_PORT}"
        self._start = start
        self._processes: dict[str, subprocess.Popen[Any]] = {}
        self._users = {ADMINISTRATOR: "system:masters", **users}
        self._tokens = {user: secrets.token_hex(16) for user in self._users}
        directory.mkdir(parents=True, exist_ok=True)
        self._write_credentials(trustme.CA())

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.kubeconfig_of(ADMINISTRATOR)

    def kubeconfig_of(self, user: str) -> Path:
        """A user's kubeconfig."""
        return self.directory / f"{user.rpartition(':')[2]}.kubeconfig"

    def start(self) -> None:
        """Start etcd and the API server, and wait until the API server is ready."""
        self._launch(
            "etcd",
            f"--data-dir={self._file('etcd')}",
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
            f"--listen-peer-urls={ETCD_PEERS}",
            f"--initial-advertise-peer-urls={ETCD_PEERS}",
            f"--initial-cluster=default={ETCD_PEERS}",
            "--unsafe-no-fsync",  # nothing here must outlive the machine
        )
        self.start_api_server()

    def start_api_server(self) -> None:
        """Start the API server, and wait until it is ready."""
        self._launch(
            "kube-apiserver",
            f"--etcd-servers={ETCD}",
            f"--bind-address={CONTROL}",
            f"--advertise-address={CONTROL}",
            f"--secure-port={CONTROL_PORT}",
            f"--service-cluster-ip-range={SERVICES},{SERVICES6}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={self._file('accounts.key')}",
            f"--service-account-signing-key-file={self._file('accounts.key')}",
            f"--token-auth-file={self._file('tokens.csv')}",
            f"--tls-cert-file={self._file('server.crt')}",
            f"--tls-private-key-file={self._file('server.key')}",
            f"--client-ca-file={self._file('ca.crt')}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
        )
        wait_until(self.is_ready, lambda: self.log("kube-apiserver")[-3000:], patience=PATIENCE, pause=0.2)

    def start_controllers(self) -> None:
        """Start the controller manager and the scheduler."""
        common = [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1"]
        self._launch(
            "kube-controller-manager",
            *common,
            f"--service-account-private-key-file={self._file('accounts.key')}",
            f"--root-ca-file={self._file('ca.crt')}",
            f"--cluster-signing-cert-file={self._file('ca.crt')}",
            f"--cluster-signing-key-file={self._file('ca.key')}",
            "--use-service-account-credentials=true",
            "--allocate-node-cidrs=false",
        )
        self._launch("kube-scheduler", *common)

    def stop(self, program: str) -> None:
        """Kill a program, as if its machine had failed: kube-apiserver takes a minute to end by SIGTERM."""
        kill(self._processes.pop(program))

    def is_ready(self) -> bool:
        """Whether the API server says so.  Raises RuntimeError if it has ended."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} has ended: {self.log(name)[-3000:]}")
        command = ["curl", "--silent", "--cacert", self._file("ca.crt"), f"{self.url}/readyz"]
        asked = self._start(command, stdout=subprocess.PIPE, text=True)
        return str(asked.communicate()[0]) == "ok"

    def log(self, program: str) -> str:
        """The output of a program so far."""
        return (self.directory / f"{program}.log").read_text(errors="replace")

    def close(self) -> None:
        """End all programs."""
        for program in reversed(list(self._processes)):
            self.stop(program)

    def _launch(self, program: str, *arguments: str) -> None:
        with (self.directory / f"{program}.log").open("ab") as log:
            command = [self.binaries.path(program), *arguments]
            self._processes[program] = self._start(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _file(self, name: str) -> str:
        return str(self.directory / name)

    def _write_credentials(self, authority: trustme.CA) -> None:
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost", "127.0.0.1")
        server = authority.issue_cert(*dict.fromkeys((CONTROL, FIRST_SERVICE, *names)))
        accounts = authority.issue_cert("accounts.example.test")
        for name, blob in {
            "ca.crt": authority.cert_pem,
            "ca.key": authority.private_key_pem,
            "server.crt": server.cert_chain_pems[0],
            "server.key": server.private_key_pem,
            "accounts.key": accounts.private_key_pem,
        }.items():
            blob.write_to_path(self._file(name))
        rows = [f'{self._tokens[user]},{user},{user},"{groups}"\n' for user, groups in self._users.items()]
        (self.directory / "tokens.csv").write_text("".join(rows))
        for user in self._users:
            self.kubeconfig_of(user).write_text(self.kubeconfig_with(self._tokens[user]))

    def kubeconfig_with(self, token: str, namespace: str = "default", current: str = "lab") -> str:
        """The text of a kubeconfig with a token, whose only context is `lab`."""
        cluster = {"server": self.url, "certificate-authority": self._file("ca.crt")}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": "lab", "user": {"token": token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab", "namespace": namespace}}],
            "current-context": current,
        }
        return to_yaml([document])
