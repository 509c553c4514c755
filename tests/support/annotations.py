"""Every annotation with a good value and a bad value: their meaning for the parser, the rules and the user."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from nftproxy.installed import OPTIONS
from nftproxy.model.addresses import parse_network
from nftproxy.model.annotations import PREFIX, Option, Rate, Word
from tests.support.words import member_of

NO_EFFECT = "the annotation has no effect"


class Row(NamedTuple):
    """An annotation by its name without the prefix.

    `value` is good: it is parsed to `means`, in which words are texts.  `added` is text that `diff` shows when a
    Service gets it.
    `bad` is reported as `problem`.
    """

    name: str
    value: str
    means: object
    added: tuple[str, ...]
    bad: str
    problem: str

    @property
    def full_name(self) -> str:
        """The name with the prefix."""
        return f"{PREFIX}{self.name}"

    @property
    def option(self) -> Option[Any]:
        """Its declaration."""
        return next(each for each in OPTIONS if each.name == self.name)

    @property
    def meaning(self) -> object:
        """What `value` is parsed to."""
        form = self.option.form
        if not isinstance(form, Word):
            return self.means
        if isinstance(self.means, frozenset):
            return frozenset(member_of(form, each) for each in self.means)
        return member_of(form, str(self.means))

    @property
    def is_of_slice(self) -> bool:
        """Whether EndpointSlices have it, and not Services."""
        return self.option.is_of_slices

    @property
    def sets(self) -> tuple[str, ...]:
        """The sets and maps that are declared to differ by it."""
        return self.option.sets


ROWS = (
    Row(
        "algorithm",
        "consistent-hash",
        "consistent-hash",
        ("set jhash ip saddr mod 4093", "tcp-consistent-endpoints { ", " 80 . 0.0.15.252 : "),
        "rr",
        "is 'rr', not one of random, round-robin, source-hash, source-hash-with-port, "
        f"consistent-hash, consistent-hash-with-port, least-connections: {NO_EFFECT}",
    ),
    Row(
        "weights",
        "zone:a=3,zone:b=1",
        (("a", 3), ("b", 1)),
        ("set numgen random mod 5", "10.96.0.10 . 80 . 0.0.0.4 : "),
        "a=3",
        f"has 'a=3', which is not written as zone:NAME=WEIGHT: {NO_EFFECT}",
    ),
    Row(
        "weight",
        "50",
        50,
        ("set numgen random mod 5", "10.96.0.10 . 80 . 0.0.0.4 : "),
        "101",
        f"is '101', not a number from 0 to 100: {NO_EFFECT}",
    ),
    Row(
        "failover",
        "silent,refused",
        frozenset({"silent", "refused"}),
        ("set unanswered {", " watched { 10.96.0.10 . tcp . 80 : ", " retried { 10.96.0.10 . tcp . 80 : "),
        "leave-out",
        f"is 'leave-out', not one of silent, refused, gone: {NO_EFFECT}",
    ),
    Row(
        "client-connection-rate",
        "20,burst=40",
        Rate(20, 40),
        ("limit rate over 20/second burst 40 packets", "10.96.0.10 . tcp . 80"),
        "0",
        f"is '0', not a number from 1 to 10000: {NO_EFFECT}",
    ),
    Row(
        "client-connections",
        "100",
        100,
        ("ct count over 100", "10.96.0.10 . tcp . 80"),
        "many",
        f"is 'many', not a number from 1 to 10000: {NO_EFFECT}",
    ),
    Row(
        "denied-source-ranges",
        "192.0.2.0/24",
        (parse_network("192.0.2.0/24"),),
        ("denied { 10.96.0.10 . 192.0.2.0 . 24 }",),
        "192.0.2/24",
        f"has '192.0.2/24', which is not a CIDR: {NO_EFFECT}",
    ),
    Row(
        "source-ranges-for",
        "node-ports,external-ips",
        frozenset({"node-ports", "external-ips"}),
        ("guarded { 203.0.113.9 . tcp . 80 : 10.96.0.10 }", "nodeport-guarded { tcp . 30080"),
        "cluster-ips",
        f"is 'cluster-ips', not one of external-ips, node-ports: {NO_EFFECT}",
    ),
)

each_annotation = pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
