"""Questions that doctor asks of a cluster and of kube-proxy, once each, and what was answered.

The agent asks none of these: it finds out what it may do by doing it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple, TypeVar

import httpx
import msgspec

from nftproxy.api.responses import read_error
from nftproxy.api.reviews import GROUP, PLURAL, Right, review, verdict
from nftproxy.model.errors import Unavailable
from nftproxy.sources.apiserver import Cluster

PATIENCE = 5.0
"""Seconds for an answer from this machine: kube-proxy's metrics with 10,000 Services take less than one."""
LONGEST = 8 * 2**20
"""Bytes of such an answer; kube-proxy's metrics have some 300,000."""

S = TypeVar("S", bound=msgspec.Struct)

_FELIX = ("crd.projectcalico.org/v1", "felixconfigurations/default")


class Answers(NamedTuple):
    """What the API has answered; None for what it denies, or doesn't have.

    `denied` has the API's reason for each right that isn't given.  `has_node` says whether there is a Node of that
    name, `cluster_ip` is that of default/kubernetes, `felix_mode` Calico's nftablesMode ("Auto" where it says nothing).
    """

    denied: dict[Right, str]
    has_node: bool | None
    cluster_ip: str | None
    felix_mode: str | None


class _Spec(msgspec.Struct, frozen=True):
    cluster_ip: str | None = msgspec.field(name="clusterIP", default=None)
    nftables_mode: str | None = msgspec.field(name="nftablesMode", default=None)


class _Object(msgspec.Struct):
    spec: _Spec = _Spec()


class _List(msgspec.Struct):
    items: list[_Object] | None = None


def ask_cluster(cluster: Cluster, node: str, rights: Sequence[Right]) -> Answers:
    """Ask a cluster which of some rights this account has there, and what the cluster has of a node.

    Raises:
        Unavailable: it doesn't answer, or doesn't know who asks.
    """
    return asyncio.run(_ask_cluster(cluster, node, rights))


async def _ask_cluster(cluster: Cluster, node: str, rights: Sequence[Right]) -> Answers:
    async with aclosing(cluster):
        denied = {right: answer for right in rights if (answer := await _why_denied(cluster, right)) is not None}
        nodes = await _listed(cluster, "nodes", node)
        services = await _listed(cluster, "namespaces/default/services", "kubernetes")
        status, body = await cluster.ask("GET", *_FELIX)
        felix = _decoded(body, _Object).spec.nftables_mode or "Auto" if status == 200 else None
        return Answers(
            denied,
            has_node=None if nodes is None else bool(nodes),
            cluster_ip=services[0].spec.cluster_ip if services else None,
            felix_mode=felix,
        )


async def _why_denied(cluster: Cluster, right: Right) -> str | None:
    """What the API says against a right, "" if it gives no reason; None if it is given."""
    status, body = await cluster.ask("POST", f"{GROUP}/v1", PLURAL, review(right))
    if status != 201:
        raise Unavailable(read_error(body, status).message)
    try:
        answer = verdict(body)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"an answer is no review of access: {error}") from error
    return None if answer.is_allowed else answer.reason


async def _listed(cluster: Cluster, url: str, name: str) -> list[_Object] | None:
    """The object of a name, if there is one; None if the API denies to say."""
    status, body = await cluster.ask("GET", "v1", url, fieldSelector=f"metadata.name={name}")
    return (_decoded(body, _List).items or []) if status == 200 else None


def _decoded(body: bytes, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(body, type=kind)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"an answer isn't what was asked for: {error}") from error


def fetch(url: str) -> str:
    """What is at a URL of this machine.

    Raises:
        Unavailable: nobody answers there, or not with what was asked for.
    """
    try:
        has_tls = url.startswith("https:")  # without it nobody needs authorities, which take 50 ms to read
        with (
            httpx.Client(timeout=PATIENCE, trust_env=False, verify=has_tls) as client,
            client.stream("GET", url) as response,
        ):
            if response.status_code != 200:
                raise Unavailable(f"{url} answers {response.status_code}")
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > LONGEST:
                    raise Unavailable(f"{url} answers more than {LONGEST} bytes")
            return body.decode(errors="replace")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise Unavailable(f"{url}: {str(error) or type(error).__name__}") from error
