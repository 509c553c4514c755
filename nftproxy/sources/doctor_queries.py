"""Single queries of `doctor` to a cluster and to kube-proxy.

The agent makes none of these: it finds out its permissions by its requests.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Any, NamedTuple

import httpx
import msgspec

from nftproxy.api.access_reviews import GROUP, KIND, Permission, read_review, review
from nftproxy.api.kinds import KINDS
from nftproxy.api.parse import parse_object
from nftproxy.model.addresses import Address, parse_address
from nftproxy.model.errors import Unavailable
from nftproxy.model.objects import EndpointSlice
from nftproxy.sources.api_client import ApiClient
from nftproxy.sources.cluster_api import ApiDenies, APIObject, Node, Service, new_class

LONGEST_QUERY = 20.0
"""Seconds for all answers of a cluster, which take less than a second: else a server that is away takes minutes."""
MOST_SLICES = 30
"""EndpointSlices that are read, as a sample: a slice has 100 endpoints, in some 30 kB."""
PATIENCE = 5.0
"""Seconds for all of an answer from this machine: kube-proxy's metrics with 10,000 Services take less than a second."""
LONGEST = 8 * 2**20
"""Bytes of such an answer: kube-proxy's metrics have some 300,000."""

_Review = new_class(KIND, f"{GROUP}/v1", namespaced=False)
_FelixConfiguration = new_class("FelixConfiguration", "crd.projectcalico.org/v1", namespaced=False)


class ClusterAnswers(NamedTuple):
    """The answers of the API.  None stands for a denied request, or an absent object."""

    denied: dict[Permission, str]  # the API's reason for each permission that is missing
    has_node: bool | None  # whether a Node of this name exists
    has_pod_range: bool | None  # whether that Node has podCIDRs
    internal_ips: tuple[Address, ...] | None  # of that Node
    cluster_ip: str | None  # of the Service default/kubernetes
    felix_mode: str | None  # Calico's nftablesMode, "Auto" if unset
    slices: tuple[EndpointSlice, ...]  # at most `MOST_SLICES` of all, none if the request is denied
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
    items: list[dict[str, Any]] = []


class _AnswerVersion(msgspec.Struct):
    major: str = ""
    minor: str = ""


def query_cluster(cluster: ApiClient, node: str, rights: Sequence[Permission]) -> ClusterAnswers:
    """Query a cluster for permissions of this account, and for its objects that concern a node.

    Raises:
        ApiDenies: it doesn't accept our credentials, or can't serve the request.
        Unavailable: it doesn't answer, or not everything in `LONGEST_QUERY`.
    """
    try:
        return asyncio.run(_query_cluster(cluster, node, rights))
    except TimeoutError as error:
        raise Unavailable(f"it hasn't answered everything within {LONGEST_QUERY:g} s") from error


async def _query_cluster(cluster: ApiClient, node: str, rights: Sequence[Permission]) -> ClusterAnswers:
    async with asyncio.timeout(LONGEST_QUERY), aclosing(cluster):
        denied = {right: answer for right in rights if (answer := await _why_denied(cluster, right)) is not None}
        nodes = await _listed(cluster, Node, node)
        services = await _listed(cluster, Service, "kubernetes")
        felix = await _felix(cluster)
        return ClusterAnswers(
            denied,
            has_node=None if nodes is None else bool(nodes),
            has_pod_range=bool(nodes[0].spec.pod_cidrs) if nodes else None,
            internal_ips=_internal_ips(nodes[0].status) if nodes else None,
            cluster_ip=services[0].spec.cluster_ip if services else None,
            felix_mode=None if felix is None else felix.spec.nftables_mode or "Auto",
            slices=await _slices(cluster),
            version=await _version(cluster),
        )


async def _why_denied(cluster: ApiClient, right: Permission) -> str | None:
    """Return the API's reason against a permission, "" without a reason, or None if the permission is given."""
    created = _Review(review(right), api=cluster.api)
    async with cluster.asking():
        await created.create()
    try:
        answer = read_review(created.raw)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"an answer isn't an access review: {error}") from error
    return None if answer.is_allowed else answer.reason


async def _listed(cluster: ApiClient, kind: type[APIObject], name: str) -> list[_AnswerObject] | None:
    """Return the object of a name, if it exists.  Return None if the API denies the request."""
    selector = f"metadata.name={name}"
    try:
        async with cluster.asking():
            return [_answer(each) async for each in cluster.api.get(kind, namespace="default", field_selector=selector)]
    except ApiDenies:
        return None


def _internal_ips(status: _AnswerStatus) -> tuple[Address, ...]:
    """The readable InternalIPs of a Node."""
    found = []
    for each in status.addresses or ():
        with suppress(ValueError):
            found += [parse_address(each.address)] if each.type == "InternalIP" else []
    return tuple(found)


async def _slices(cluster: ApiClient) -> tuple[EndpointSlice, ...]:
    """Return some readable EndpointSlices."""
    query = {"limit": str(MOST_SLICES)}
    try:
        async with (
            cluster.asking(),
            cluster.api.call_api(version="discovery.k8s.io/v1", url="endpointslices", params=query) as answer,
        ):
            items = msgspec.json.decode(answer.content, type=_AnswerList).items
    except ApiDenies:
        return ()
    found = (parse_object(each, "", [], kind=KINDS["EndpointSlice"]) for each in items)
    return tuple(each for each in found if isinstance(each, EndpointSlice))


async def _felix(cluster: ApiClient) -> _AnswerObject | None:
    """Return Calico's configuration, None without one."""
    felix = _FelixConfiguration("default", api=cluster.api)
    try:
        async with cluster.asking():
            await felix.refresh()
            return _answer(felix)
    except ApiDenies:
        return None


async def _version(cluster: ApiClient) -> tuple[int, int] | None:
    """Kubernetes' version.  Some distributions write a minor version as "28+"."""
    try:
        async with cluster.asking():
            answer = msgspec.convert(await cluster.api.version(), _AnswerVersion)
    except ApiDenies:
        return None
    match = re.match(r"(\d{1,4}) (\d{1,4})", f"{answer.major} {answer.minor}")
    return (int(match[1]), int(match[2])) if match else None


def _answer(found: APIObject | dict[str, Any]) -> _AnswerObject:
    return msgspec.convert(found if isinstance(found, dict) else found.raw, _AnswerObject)


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
