"""Ranges of sources as plain elements, which cost the kernel as much as any other element."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nftproxy.model.addresses import Family, Network
from nftproxy.model.events import Put
from nftproxy.model.objects import EndpointSlice, Service
from nftproxy.policy.ranges import STRIDE, WIDTH, networks_of, range_keys, source_lengths
from nftproxy.rules.ruleset import NftKind
from tests.support.factories import IPV4, pipeline, service, slice_of

START = {Family.IPV4: "192.0.2.0", Family.IPV6: "2001:db8::"}


@pytest.mark.parametrize(
    ("ranges", "keys"),
    [
        (["192.0.2.0/24"], ["192.0.2.0 . 24"]),
        (["192.0.2.7/32"], ["192.0.2.7 . 32"]),
        (["0.0.0.0/0"], ["0.0.0.0 . 0"]),
        (["192.0.2.0/25", "192.0.2.128/25"], ["192.0.2.0 . 24"]),
        (["192.0.2.4/31"], ["192.0.2.4 . 32", "192.0.2.5 . 32"]),
        (["10.0.0.0/10"], ["10.0.0.0 . 12", "10.16.0.0 . 12", "10.32.0.0 . 12", "10.48.0.0 . 12"]),
        (["2001:db8::/47"], ["2001:db8:: . 48", "2001:db8:1:: . 48"]),
    ],
)
def test_a_range_is_networks_of_few_lengths(ranges: list[str], keys: list[str]) -> None:
    """A range whose length isn't asked for is several networks of the next length, which are that range together."""
    networks: list[Network] = [ip_network(each) for each in ranges]
    assert range_keys(networks) == tuple(keys)
    assert networks_of(keys) == networks_of(str(each).replace("/", " . ") for each in networks)


@given(st.sampled_from(Family), st.data())
def test_a_source_is_found_as_in_the_ranges(family: Family, data: st.DataObject) -> None:
    """A source is in the ranges just if one of the rules' lookups finds it, cut to the length of that lookup."""
    start = int(ip_address(START[family]))
    near = st.builds(lambda low, shift: start ^ low << shift, st.integers(0, 15), st.integers(0, WIDTH[family] - 8))
    lengths = st.integers(0, WIDTH[family])
    networks: list[Network] = [
        ip_network((number.to_bytes(WIDTH[family] // 8, "big"), length), strict=False)
        for number, length in data.draw(st.lists(st.tuples(near, lengths), max_size=20))
    ]
    keys = range_keys(networks)
    assert len(keys) <= (1 << (STRIDE - 1)) * len(networks)
    assert len(set(keys)) == len(keys)
    source = ip_address(data.draw(near).to_bytes(WIDTH[family] // 8, "big"))
    asked = [f"{_cut(int(source), family, expression)} . {length}" for expression, length in source_lengths(family)]
    assert any(key in keys for key in asked) == any(source in each for each in networks)


def _cut(source: int, family: Family, expression: str) -> str:
    """The result of an nft expression, such as "ip saddr & 255.255.255.0"."""
    mask = expression.partition(" & ")[2]
    number = source & int(ip_address(mask)) if mask else source
    return str(ip_address(number.to_bytes(WIDTH[family] // 8, "big")))


def test_no_set_of_services_has_intervals() -> None:
    """No set or map to which a Service adds has intervals: the kernel would walk all of it for each deleted element."""
    made = pipeline(
        service(
            type="LoadBalancer",
            load_balancer_ips=["203.0.113.7"],
            source_ranges=["192.0.2.0/24"],
            annotations={"denied-source-ranges": "198.51.100.0/25"},
        ),
        slice_of(endpoints=["10.1.0.4"]),
    )
    generation = made.generations[IPV4]
    declared = {name for kind, name in generation.declarations if kind is not NftKind.CHAIN}
    intervals = {name for (_, name), each in generation.declarations.items() if "flags interval" in each.body}
    assert {"allowed", "denied"} <= declared
    assert intervals == {"service-cidrs"}, "which ServiceCIDRs alone fill"


def test_dropping_a_list_is_deleting_its_elements() -> None:
    """The transaction that drops a Service's list has the same statements with any lists of other Services."""
    sizes = set()
    for others in (1, 30):
        made = pipeline(*(each for number in range(others) for each in _denying(number)))
        made.ingest(map(Put, _denying(200)))
        dropped = made.ingest(map(Put, _denying(200, ranges=1)))
        assert all(line.startswith("delete element ip nftproxy denied ") for line in dropped.text.splitlines())
        sizes.add(dropped.size())
    (size,) = sizes
    assert size.elements == 49


def _denying(number: int, ranges: int = 50) -> list[Service | EndpointSlice]:
    """A Service that denies `ranges` ranges."""
    name = f"shop/s{number}"
    denied = ",".join(f"198.51.{2 * index}.0/24" for index in range(ranges))
    asked = {"denied-source-ranges": denied}
    return [service(name, cluster_ips=[f"10.96.1.{number}"], annotations=asked), slice_of(name, ["10.1.0.4"])]
