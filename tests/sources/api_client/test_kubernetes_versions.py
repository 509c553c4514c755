"""The agent follows the API servers of all supported Kubernetes versions, and of two versions in turn."""

from __future__ import annotations

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.apiserver.versions import Feature, has

from nftproxy.doctor.cluster_checks import OLDEST_VERSION
from nftproxy.sources.api_client import ApiClient
from tests.sources.api_client.following import Following, endpoint_slice, following, service, shown, truth

VERSIONS = [f"v1.{minor}.0" for minor in range(OLDEST_VERSION[1], 38)]


async def until_right_about_services(seen: Following) -> None:
    """Wait until the state has the server's Services, EndpointSlices and Node."""

    def is_right() -> bool:
        state, server = shown(seen.state), truth(seen.server)
        return all(state[each] == server[each] for each in ("services", "slices", "node"))

    await seen.until(is_right)


@pytest.mark.parametrize("version", VERSIONS)
async def test_each_version_is_followed(server: ApiServer, cluster: ApiClient, version: str) -> None:
    """The state is the server's, after the first lists and after changes.  Only absent kinds are denied."""
    server.settings.version = version
    async with following(server, cluster) as seen:
        await seen.ready()
        server.put(service(20), endpoint_slice(20))
        server.delete("Service", "shop", "s0")
        await until_right_about_services(seen)
        assert seen.requests(status=400) == 0
        assert bool(seen.requests(status=404)) is not has(version, Feature.SERVICE_CIDRS)
        assert bool(seen.state._service_cidrs) is has(version, Feature.SERVICE_CIDRS)


async def test_a_control_plane_that_is_being_upgraded(server: ApiServer, cluster: ApiClient) -> None:
    """Behind a load balancer servers of two versions answer in turn.  The Services are right after each turn."""
    async with following(server, cluster) as seen:
        for number, version in enumerate(("v1.30.0", "v1.37.0", "v1.30.0", "v1.37.0")):
            server.settings.version = version
            server.restart()
            server.put(service(30 + number), endpoint_slice(30 + number))
            await until_right_about_services(seen)
        await seen.right()
