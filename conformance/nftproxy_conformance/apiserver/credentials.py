"""Certificates made on the spot, and the kubeconfigs and service accounts of clients."""

from __future__ import annotations

import base64
import contextlib
import itertools
import ssl
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import trustme
import yaml

ADMINISTRATOR = "kubernetes-admin"
"""The user of a client certificate."""


class Proof(Enum):
    """How a client authenticates."""

    NOTHING = "nothing"
    TOKEN = "token"
    CERTIFICATE = "certificate"


class Authority:
    """A certificate authority of its own, with a certificate for the server and one for clients.

    Args:
        names: the addresses and host names of the server.
    """

    def __init__(self, *names: str) -> None:
        self._ca = trustme.CA()
        self._server = self._ca.issue_cert(*dict.fromkeys((*names, "localhost", "127.0.0.1", "::1")))
        self._client = self._ca.issue_cert("admin@example.test", common_name=ADMINISTRATOR)

    @property
    def certificate(self) -> bytes:
        """The certificate of the authority, as PEM."""
        return self._ca.cert_pem.bytes()

    @property
    def client(self) -> tuple[bytes, bytes]:
        """The client's certificate and its key, as PEM."""
        chain = b"".join(blob.bytes() for blob in self._client.cert_chain_pems)
        return chain, self._client.private_key_pem.bytes()

    def server_context(self) -> ssl.SSLContext:
        """The server's TLS context, which requests a client certificate without requiring it."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._server.configure_cert(context)
        self._ca.configure_trust(context)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def client_context(self) -> ssl.SSLContext:
        """A TLS context for clients that trust the server and show no certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._ca.configure_trust(context)
        return context


def common_name(certificate: Mapping[str, Any] | None) -> str:
    """The common name in a result of `ssl.SSLSocket.getpeercert`, or ""."""
    subject = itertools.chain.from_iterable((certificate or {}).get("subject", ()))
    return next((value for key, value in subject if key == "commonName"), "")


class Files:
    """Files of credentials for clients, rewritten when the token changes."""

    def __init__(self) -> None:
        self._kubeconfigs: list[tuple[Path, str, Authority | None, Proof, bool]] = []
        self._accounts: list[tuple[Path, Authority | None]] = []
        self._generation = itertools.count(1)

    def add_kubeconfig(
        self, path: Path, url: str, authority: Authority | None, proof: Proof, *, embed: bool, token: str
    ) -> None:
        """Write a kubeconfig.

        Args:
            path: its path.
            url: the server's URL.
            authority: the certificate authority, None without TLS.
            proof: the kind of credentials in it.
            embed: whether certificates and keys are embedded.  Otherwise they are files beside it, as with kubeadm's
                kubelet.
            token: the token.
        """
        self._kubeconfigs.append((path, url, authority, proof, embed))
        self.write(token)

    def add_account(self, directory: Path, authority: Authority | None, *, token: str) -> None:
        """Write the files that a pod has in /var/run/secrets/kubernetes.io/serviceaccount."""
        self._accounts.append((directory, authority))
        self.write(token)

    def write(self, token: str) -> None:
        """Write everything with this token."""
        for path, url, authority, proof, embed in self._kubeconfigs:
            _replace(path, yaml.safe_dump(_kubeconfig(path, url, authority, proof, embed, token)).encode())
        for directory, authority in self._accounts:
            self._write_account(directory, authority, token)

    def _write_account(self, directory: Path, authority: Authority | None, token: str) -> None:
        """Write the files as the kubelet does: all change at once, when a symbolic link is replaced."""
        fresh = directory / f"..generation_{next(self._generation)}"
        fresh.mkdir(parents=True)
        (fresh / "token").write_text(token)
        (fresh / "namespace").write_text("kube-system")
        (fresh / "ca.crt").write_bytes(authority.certificate if authority else b"")
        link, data = directory / "..data_tmp", directory / "..data"
        old = data.resolve() if data.is_symlink() else None
        link.symlink_to(fresh.name)
        link.rename(data)
        for name in ("token", "namespace", "ca.crt"):
            with contextlib.suppress(FileExistsError):
                (directory / name).symlink_to(Path("..data", name))
        for file in old.iterdir() if old else ():
            file.unlink()
        if old:
            old.rmdir()


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{path.name}.tmp")
    fresh.write_bytes(content)
    fresh.chmod(0o600)
    fresh.replace(path)


def _kubeconfig(
    path: Path, url: str, authority: Authority | None, proof: Proof, embed: bool, token: str
) -> dict[str, Any]:
    def pem(name: str, file: str, content: bytes) -> dict[str, str]:
        if embed:
            return {f"{name}-data": base64.b64encode(content).decode()}
        _replace(path.with_name(file), content)
        return {name: file}

    cluster = {"server": url}
    if authority is not None:
        cluster |= pem("certificate-authority", "ca.crt", authority.certificate)
    user: dict[str, str] = {}
    if proof is Proof.TOKEN:
        user = {"token": token}
    elif proof is Proof.CERTIFICATE and authority is not None:
        certificate, key = authority.client
        user = pem("client-certificate", "client.crt", certificate) | pem("client-key", "client.key", key)
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
