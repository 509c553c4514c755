"""Single queries of `doctor` to a cluster and to kube-proxy.

The agent makes none of these: it finds out its permissions by its requests.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple, TypeVar

import httpx
import msgspec

from nftproxy.api.access_reviews import GROUP, PLURAL, Permission, read_review, review
from nftproxy.api.responses import ErrorStatus, read_error
from nftproxy.model.addresses import Address, parse_address
from nftproxy.model.errors import Unavailable
from nftproxy.sources.api_client import ApiClient

PATIENCE = 5.0
"""Seconds for all of an answer from this machine: kube-proxy's metrics with 10,000 Services take less than a second."""
LONGEST = 8 * 2**20
"""Bytes of such an answer: kube-proxy's metrics have some 300,000."""

S = TypeVar("S", bound=msgspec.Struct)

_FELIX = ("crd.projectcalico.org/v1", "felixconfigurations/default")


class ClusterAnswers(NamedTuple):
    """The answers of the API.  None stands for a denied request, or an absent object."""

    denied: dict[Permission, str]  # the API's reason for each permission that is missing
    has_node: bool | None  # whether a Node of this name exists
    has_pod_range: bool | None  # whether that Node has podCIDRs
    internal_ips: tuple[Address, ...] | None  # of that Node
    cluster_ip: str | None  # of the Service default/kubernetes
    felix_mode: str | None  # Calico's nftablesMode, "Auto" if unset
    version: tuple[int, int] | None  # Kubernetes' major and minor version


class _AnswerSpec(msgspec.Struct, frozen=True):
    cluster_ip: str | None = msgspec.field(name="clusterIP", default=None)
    nftables_mode: str | None = msgspec.field(name="nftablesMode", default=None)
    pod_cidrs: list[str] | None = msgspec.field(name="podCIDRs", default=None)


class _AnswerAddress(msgspec.Struct, frozen=True):
    type: str = ""
    address: str = ""


class _AnswerStatus(msgspec.Struct, frozen=True):
    addresses: list[_AnswerAddress] | None = None


class _AnswerObject(msgspec.Struct):
    spec: _AnswerSpec = _AnswerSpec()
    status: _AnswerStatus = _AnswerStatus()


class _AnswerList(msgspec.Struct):
    items: list[_AnswerObject] | None = None


class _AnswerVersion(msgspec.Struct):
    major: str = ""
    minor: str = ""


class ApiDenies(Unavailable):
    """The API has answered with an error of this HTTP status: it denies the request, or can't serve it."""

    def __init__(self, answer: ErrorStatus) -> None:
        super().__init__(answer.message)
        self.status = answer.code


def query_cluster(cluster: ApiClient, node: str, rights: Sequence[Permission]) -> ClusterAnswers:
    """Query a cluster for permissions of this account, and for its objects that concern a node.

    Raises:
        ApiDenies: it doesn't accept our credentials, or can't serve the request.
        Unavailable: it doesn't answer.
    """
    return asyncio.run(_query_cluster(cluster, node, rights))


async def _query_cluster(cluster: ApiClient, node: str, rights: Sequence[Permission]) -> ClusterAnswers:
    async with aclosing(cluster):
        denied = {right: answer for right in rights if (answer := await _why_denied(cluster, right)) is not None}
        nodes = await _listed(cluster, "nodes", node)
        services = await _listed(cluster, "namespaces/default/services", "kubernetes")
        status, body = await cluster.request("GET", *_FELIX)
        felix = _decoded(body, _AnswerObject).spec.nftables_mode or "Auto" if status == 200 else None
        return ClusterAnswers(
            denied,
            has_node=None if nodes is None else bool(nodes),
            has_pod_range=bool(nodes[0].spec.pod_cidrs) if nodes else None,
            internal_ips=_internal_ips(nodes[0].status) if nodes else None,
            cluster_ip=services[0].spec.cluster_ip if services else None,
            felix_mode=felix,
            version=_version(*await cluster.server_version()),
        )


async def _why_denied(cluster: ApiClient, right: Permission) -> str | None:
    """Return the API's reason against a permission, "" without a reason, or None if the permission is given."""
    status, body = await cluster.request("POST", f"{GROUP}/v1", PLURAL, review(right))
    if status != 201:
        raise ApiDenies(read_error(body, status))
    try:
        answer = read_review(body)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"an answer isn't an access review: {error}") from error
    return None if answer.is_allowed else answer.reason


async def _listed(cluster: ApiClient, url: str, name: str) -> list[_AnswerObject] | None:
    """Return the object of a name, if it exists.  Return None if the API denies the request."""
    status, body = await cluster.request("GET", "v1", url, fieldSelector=f"metadata.name={name}")
    return (_decoded(body, _AnswerList).items or []) if status == 200 else None


def _internal_ips(status: _AnswerStatus) -> tuple[Address, ...]:
    """The readable InternalIPs of a Node."""
    found = []
    for each in status.addresses or ():
        with suppress(ValueError):
            found += [parse_address(each.address)] if each.type == "InternalIP" else []
    return tuple(found)


def _version(status: int, body: bytes) -> tuple[int, int] | None:
    """Kubernetes' version in the answer at /version.  Some distributions write a minor version as "28+"."""
    if status != 200:
        return None
    answer = _decoded(body, _AnswerVersion)
    match = re.match(r"(\d{1,4}) (\d{1,4})", f"{answer.major} {answer.minor}")
    return (int(match[1]), int(match[2])) if match else None


def _decoded(body: bytes, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(body, type=kind)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"unexpected answer: {error}") from error


def fetch(url: str) -> str:
    """Return the text at a URL of this machine.

    Raises:
        Unavailable: no server answers there in time, or its answer isn't a text of status 200.
    """
    try:
        return asyncio.run(_fetch(url))
    except TimeoutError as error:
        raise Unavailable(f"{url} has no complete answer within {PATIENCE:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise Unavailable(f"{url}: {str(error) or type(error).__name__}") from error


async def _fetch(url: str) -> str:
    has_tls = url.startswith("https:")  # without TLS no authorities are needed, which take 50 ms to read
    async with (
        asyncio.timeout(PATIENCE),  # for all of it: httpx' own limits begin anew with each byte
        httpx.AsyncClient(timeout=None, trust_env=False, verify=has_tls) as client,
        client.stream("GET", url) as response,
    ):
        if response.status_code != 200:
            raise Unavailable(f"{url} answers {response.status_code}")
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > LONGEST:
                raise Unavailable(f"{url} answers more than {LONGEST} bytes")
        return body.decode(errors="replace")
