"""Which features the installed libnftables and kernel have, found by trying them in a process that may die.

Versions are not compared: distributions carry fixes back, and kernels are built without parts of nftables.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from string import Template
from typing import NamedTuple

import msgspec

from nftproxy.kernel.child_process import ChildCrashed, in_scratch_namespace_if_allowed
from nftproxy.kernel.libnftables import check_text
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.model.settings import Capabilities

# Affinity as the templates write it, declared in two steps.
WIDE_MAPS = (
    """\
table ip6 probe {
  map m {
    type ipv6_addr . ipv6_addr . inet_service : ipv6_addr
    size 65536
    flags dynamic,timeout
    timeout 3h
  }
  chain remember {
  }
  chain follow {
  }
}
""",
    """\
table ip6 probe {
  chain remember {
    meta l4proto tcp update @m { ip6 saddr . ct original ip6 daddr . ct original proto-dst timeout 3h : ip6 daddr }
  }
  chain follow {
    delete @m { ip6 saddr . ip6 daddr . tcp dport : ip6 daddr }
    ip6 daddr set ip6 saddr . ip6 daddr . tcp dport map @m
  }
}
""",
)


class Feature(NamedTuple):
    """A part of nftables that the rules need: its name, its source, and declarations that use it.

    In `text`, $family is ip or ip6, and $type the type of its addresses.
    """

    name: str
    source: str
    text: str


def declare(what: str, *lines: str) -> str:
    """Return a chain, set or map as nft's text."""
    return f"{what} {{\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


SLOT = "ct original $family daddr . tcp dport . $family daddr"
FEATURES = (
    Feature(
        "filter chains",
        "CONFIG_NF_TABLES_IPV4, CONFIG_NF_TABLES_IPV6",
        declare("chain c", "type filter hook forward priority 0"),
    ),
    Feature("nat chains", "CONFIG_NFT_NAT", declare("chain c", "type nat hook prerouting priority -100")),
    Feature("numgen", "CONFIG_NFT_NUMGEN", declare("chain c", "numgen random mod 2 0 drop")),
    Feature(
        "dnat to an endpoint in a map",
        "CONFIG_NFT_NAT",
        declare("map endpoints", f"typeof {SLOT} : $family daddr . tcp dport")
        + declare("chain c", f"meta l4proto tcp dnat $family addr . port to {SLOT} map @endpoints"),
    ),
    Feature(
        "masquerade",
        "CONFIG_NFT_MASQ",
        declare("chain c", "type nat hook postrouting priority 100", "masquerade fully-random"),
    ),
    Feature("fib", "CONFIG_NFT_FIB_IPV4, CONFIG_NFT_FIB_IPV6", declare("chain c", "fib saddr type local drop")),
    Feature("reject", "CONFIG_NFT_REJECT_IPV4, CONFIG_NFT_REJECT_IPV6", declare("chain c", "reject")),
    Feature(
        "ct",
        "CONFIG_NFT_CT",
        declare("chain c", "ct state new ct status dnat meta l4proto tcp ct original proto-dst 80 drop"),
    ),
    Feature(
        "numbers in concatenations",
        "nft 1.0.6",
        declare("map m", "typeof meta l4proto . numgen random mod 2 : $family daddr"),
    ),
    Feature(
        "verdict maps",
        "CONFIG_NF_TABLES",
        declare("map verdicts", "type $type . inet_proto . inet_service : verdict")
        + declare("chain c", "$family daddr . meta l4proto . th dport vmap @verdicts"),
    ),
    Feature(
        "maps that packets write",
        "Linux 5.4",
        declare("map seen", "type $type : inet_service", "size 65536", "flags dynamic,timeout", "timeout 3h")
        + declare("chain c", "meta l4proto tcp update @seen { $family saddr timeout 3h : tcp dport }"),
    ),
    Feature(
        "concatenations with ranges",
        "Linux 5.6",
        declare("set ranges", "type $type . inet_service . $type", "flags interval")
        + declare("chain c", "$family daddr . th dport . $family saddr @ranges drop"),
    ),
)
ADDRESS_TYPE = {Family.IPV4: "ipv4_addr", Family.IPV6: "ipv6_addr"}


class Probe(msgspec.Struct, frozen=True):
    """The features that were found, and why a feature is missing ("" if none is)."""

    capabilities: Capabilities
    reason: str = ""


@functools.cache
def probe() -> Probe:
    """Try the features that not every libnftables has, once per process.

    A feature that can't be tried counts as missing, since using it might kill the process.  A container that drops all
    capabilities but CAP_NET_ADMIN can't make a namespace, but a dry run in its own leaves nothing.  A user without
    CAP_NET_ADMIN can't do anything in its own.
    """
    try:
        in_scratch_namespace_if_allowed(check_text, "".join(WIDE_MAPS))
    except ChildCrashed:  # of an assertion, in nft 1.0.6
        return Probe(Capabilities(wide_maps=False), "this libnftables dies of maps with keys wider than 16 bytes")
    except (Refused, Unavailable) as error:
        return Probe(Capabilities(wide_maps=False), f"no maps with keys wider than 16 bytes: {error}")
    return Probe(Capabilities(wide_maps=True))


def missing_features(features: Iterable[Feature] = FEATURES) -> list[str]:
    """Return the features that the rules need and this machine lacks, each with its source and the kernel's error.

    Raises:
        Unavailable: no feature can be tried, as there is no libnftables or no namespace, or the process died.
    """
    rows = [(feature, family) for feature in features for family in Family]
    texts = [_table(f"probe-{number}", *row) for number, row in enumerate(rows)]
    answers = in_scratch_namespace_if_allowed(refused_texts, texts)
    return [
        f"{feature.name} for {family.value} ({feature.source}): {answer}"
        for (feature, family), answer in zip(rows, answers, strict=True)
        if answer
    ]


@functools.cache
def machine_lacks() -> tuple[str, ...]:
    """Return the missing features, or why they can't be tried, found once per process."""
    try:
        return tuple(missing_features())
    except Unavailable as error:
        return (str(error),)


def known_lacks() -> tuple[str, ...]:
    """Return the findings of `machine_lacks` so far, and the features that the rules can do without.  Never blocks."""
    missing = machine_lacks() if machine_lacks.cache_info().currsize else ()
    wide_maps = probe().reason if probe.cache_info().currsize else ""
    return (*missing, f"session affinity for IPv6 goes by a hash: {wide_maps}") if wide_maps else missing


def refused_texts(texts: Sequence[str]) -> list[str]:
    """Return the error for each text, "" if there is none.

    If the kernel refuses all texts together, each text is tried by itself.
    """
    if not _error_of("".join(texts)):
        return [""] * len(texts)
    return [_error_of(text) for text in texts]


def _error_of(text: str) -> str:
    try:
        check_text(text)
    except Refused as error:
        return error.message
    return ""


def _table(name: str, feature: Feature, family: Family) -> str:
    body = Template(feature.text).substitute(family=family.value, type=ADDRESS_TYPE[family])
    return f"table {family.value} {name} {{\n{body}}}\n"
