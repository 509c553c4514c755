"""The server as a process: it prints its URL once it listens, and ends on SIGTERM or SIGINT."""

from __future__ import annotations

import gc
import signal
from pathlib import Path

import click

from nftproxy_conformance.apiserver.documents import documents
from nftproxy_conformance.apiserver.resources import RESOURCES
from nftproxy_conformance.apiserver.server import ApiServer
from nftproxy_conformance.apiserver.settings import Settings

KINDS = {resource.kind for resource in RESOURCES}


@click.command()
@click.option(
    "--host", "hosts", multiple=True, default=["127.0.0.1"], show_default=True, help="An address; repeatable."
)
@click.option("--port", default=0, help="0, the default, is any that is free.")
@click.option("--tls", is_flag=True, help="HTTPS, with a certificate authority of its own.")
@click.option("--authenticate", is_flag=True, help="Ask for the token (or certificate) in the files below.")
@click.option("--manifests", type=click.Path(exists=True, path_type=Path), help="Objects to begin with, and roles.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Where to write one.")
@click.option("--service-account", type=click.Path(path_type=Path), help="A directory to write token and ca.crt into.")
@click.option("--bookmarks", default=60.0, show_default=True, help="Seconds between a watch's bookmarks.")
@click.option(
    "--service-cidr",
    "service_cidrs",
    multiple=True,
    default=Settings.service_cidrs,
    show_default=True,
    help="Where ClusterIPs come from; one for each family.",
)
@click.option("--version", default=Settings.version, show_default=True, help="What /version says.")
def main(
    hosts: tuple[str, ...],
    port: int,
    tls: bool,
    authenticate: bool,
    manifests: Path | None,
    kubeconfig: Path | None,
    service_account: Path | None,
    bookmarks: float,
    service_cidrs: tuple[str, ...],
    version: str,
) -> None:
    """Serve the Kubernetes API, as far as a service proxy needs it.

    Objects are read from the manifests at the start and written over HTTP afterwards.  If there are ClusterRoles or
    Roles among the manifests, only the requests that they allow are allowed.
    """
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # in all threads, so that they wait for sigwait
    settings = Settings(version=version, bookmark_interval=bookmarks, service_cidrs=service_cidrs)
    with ApiServer(hosts=hosts, port=port, tls=tls, authenticate=authenticate, settings=settings) as server:
        given = list(documents(manifests)) if manifests else []
        server.put(*(each for each in given if each["kind"] in KINDS))
        roles = [each for each in given if each["kind"] in {"ClusterRole", "Role"}]
        if roles:
            server.allow(*roles)
        if kubeconfig:
            server.write_kubeconfig(kubeconfig)
        if service_account:
            server.write_service_account(service_account)
        gc.collect()
        gc.freeze()  # a look at 80,000 objects for garbage would take a tenth of a second, again and again
        click.echo(server.url)
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
