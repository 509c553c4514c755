"""Local sources by detectLocalMode: by network or by interface, described with the name of the field."""

from __future__ import annotations

import pytest

from nftproxy.model.addresses import Family
from nftproxy.model.settings import Config, DetectLocalMode
from nftproxy.policy.local_sources import LocalSources, local_sources
from tests.support.factories import IPV4, IPV6, networks, node

CIDRS = networks(["10.1.0.0/16", "fd00:1::/48"])


def detector(mode: DetectLocalMode, family: Family = IPV4) -> LocalSources:
    """The local sources of a node with two podCIDRs and all settings that any mode needs."""
    config = Config(detect_local_mode=mode, cluster_cidrs=CIDRS, bridge_interface="br0", interface_name_prefix="veth")
    found = local_sources(node(), config, family)
    assert found
    return found


@pytest.mark.parametrize(
    ("mode", "family", "match", "words"),
    [
        (DetectLocalMode.CLUSTER_CIDR, IPV4, "ip saddr 10.1.0.0/16", "clusterCIDR 10.1.0.0/16"),
        (DetectLocalMode.CLUSTER_CIDR, IPV6, "ip6 saddr fd00:1::/48", "clusterCIDR fd00:1::/48"),
        (DetectLocalMode.NODE_CIDR, IPV4, "ip saddr 10.1.0.0/24", "the Node's podCIDR 10.1.0.0/24"),
        (DetectLocalMode.NODE_CIDR, IPV6, "ip6 saddr fd00:1::/64", "the Node's podCIDR fd00:1::/64"),
        (DetectLocalMode.BRIDGE_INTERFACE, IPV6, 'iifname "br0"', "detectLocal.bridgeInterface br0"),
        (DetectLocalMode.INTERFACE_NAME_PREFIX, IPV4, 'iifname "veth*"', "detectLocal.interfaceNamePrefix veth*"),
    ],
)
def test_local_sources_by_mode(mode: DetectLocalMode, family: Family, match: str, words: str) -> None:
    """Each mode has its match, and the words in which `explain` gives it name the field."""
    found = detector(mode, family)
    assert (found.match(family), str(found)) == (match, words)
    first, _, value = match.rpartition(" ")
    assert found.match(family, "!= ") == f"{first} != {value}"


@pytest.mark.parametrize("mode", [DetectLocalMode.CLUSTER_CIDR, DetectLocalMode.NODE_CIDR])
@pytest.mark.parametrize(("family", "other"), [(IPV4, 1), (IPV6, 0)])
def test_nothing_is_local_without_a_network(mode: DetectLocalMode, family: Family, other: int) -> None:
    """A family without a network has no local sources, even if the other family has a network."""
    bare = node(pod_cidrs=[str(CIDRS[other])])
    assert local_sources(bare, Config(detect_local_mode=mode, cluster_cidrs=(CIDRS[other],)), family) is None


@pytest.mark.parametrize(
    ("mode", "local", "others"),
    [
        (DetectLocalMode.BRIDGE_INTERFACE, ["br0"], ["br01", "br", "eth0", ""]),
        (DetectLocalMode.INTERFACE_NAME_PREFIX, ["veth", "veth0", "veth-a"], ["vet", "eth0", "xveth0", ""]),
    ],
)
def test_interfaces_of_local_sources(mode: DetectLocalMode, local: list[str], others: list[str]) -> None:
    """A bridge is a single interface, a prefix matches all names that begin with it, and the node itself is neither."""
    found = detector(mode)
    assert all(found.comes_in_by(interface) for interface in local)
    assert not any(found.comes_in_by(interface) for interface in others)
