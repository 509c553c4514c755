"""Numbers in place of a packet's address, and the meaning of each bit."""

from __future__ import annotations

import itertools
from ipaddress import IPv6Address, ip_address, ip_network

import pytest

from nftproxy.model.addresses import Family, Protocol
from nftproxy.policy.numbers import MAX_ROWS, NUMBERS, Draw, as_address, draw_number


@pytest.mark.parametrize(
    ("protocol", "draw", "rows", "is_local", "is_sticky", "number"),
    [
        (Protocol.TCP, Draw.RANDOM, 3, False, False, "0.0.0.3"),
        (Protocol.UDP, Draw.RANDOM, 3, False, False, "0.64.0.3"),
        (Protocol.SCTP, Draw.RANDOM, 3, False, False, "0.128.0.3"),
        (Protocol.TCP, Draw.RANDOM, 3, True, False, "0.32.0.3"),
        (Protocol.TCP, Draw.RANDOM, 3, False, True, "0.16.0.3"),
        (Protocol.TCP, Draw.BY_CLIENT, 3, False, False, "0.1.0.3"),
        (Protocol.UDP, Draw.RANDOM, 1000, True, True, "0.112.3.232"),
        (Protocol.TCP, Draw.RANDOM, MAX_ROWS, False, False, "0.0.255.255"),
        (Protocol.SCTP, Draw.BY_CLIENT, 0, True, True, "0.0.0.0"),
    ],
)
def test_each_bit_says_one_thing(
    protocol: Protocol, draw: Draw, rows: int, is_local: bool, is_sticky: bool, number: str
) -> None:
    """Protocol, list, affinity, algorithm and rows have bits of their own, and an empty list has none."""
    made = draw_number(protocol, draw, rows, is_local=is_local, is_sticky=is_sticky)
    assert as_address(made, Family.IPV4) == number
    assert IPv6Address(as_address(made, Family.IPV6)) == IPv6Address(made)


def test_no_two_draws_have_one_number() -> None:
    """Different draws have different numbers, and all numbers are addresses reserved for numbers."""
    yes_or_no = (False, True)
    made = [
        draw_number(protocol, draw, rows, is_local=is_local, is_sticky=is_sticky)
        for protocol, draw, rows, is_local, is_sticky in itertools.product(
            Protocol, Draw, (1, 2, 256, MAX_ROWS), yes_or_no, yes_or_no
        )
    ]
    assert len(set(made)) == len(made)
    for family, numbers in NUMBERS.items():
        assert all(ip_address(as_address(number, family)) in ip_network(numbers) for number in made)


@pytest.mark.parametrize(
    ("draw", "number", "suffix"),
    [
        (Draw.RANDOM, 0, ""),
        (Draw.BY_CLIENT, 1, "-by-client"),
        (Draw.BY_CLIENT_AND_PORT, 2, "-by-client-and-port"),
        (Draw.CONSISTENT, 3, "-by-client"),
        (Draw.CONSISTENT_WITH_PORT, 4, "-by-client-and-port"),
        *((Draw(8 + lane), 8 + lane, f"-in-turn-{lane}") for lane in range(8)),
    ],
)
def test_each_algorithm_has_a_number_and_a_name(draw: Draw, number: int, suffix: str) -> None:
    """An algorithm has 4 bits of a number, and a chain's name says how the chain draws."""
    assert draw.value == number
    assert draw.suffix == suffix


def test_what_an_algorithm_needs() -> None:
    """Two algorithms need Maglev's table, two need the client's port, and eight need a counter each."""
    assert {draw for draw in Draw if draw.is_consistent} == {Draw.CONSISTENT, Draw.CONSISTENT_WITH_PORT}
    assert {draw for draw in Draw if draw.goes_by_port} == {Draw.BY_CLIENT_AND_PORT, Draw.CONSISTENT_WITH_PORT}
    assert [draw.value for draw in Draw if draw.is_in_turn] == list(range(8, 16))
