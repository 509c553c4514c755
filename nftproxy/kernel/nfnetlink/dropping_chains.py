"""Chains of other programs that can drop packets: base chains of any table, by their policy or by a verdict in reach.

The kernel describes each rule by its expressions.  Only expressions that can stop a packet or lead to another chain are
read: verdicts, `reject`, targets of iptables, and lookups in verdict maps.  Matches aren't judged, so a chain that is
found may drop only packets that nobody sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nftproxy.kernel.nfnetlink.nft_queries import why
from nftproxy.kernel.nfnetlink.sockets import bodies, open_socket
from nftproxy.model.addresses import TABLE
from nftproxy.model.base_chains import DroppingChain
from nftproxy.model.errors import Unavailable
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import (
    ACKNOWLEDGE,
    DUMP,
    Attributes,
    attribute_map,
    attributes_of,
    named,
    number_of,
    text_of,
)
from nftproxy.netlink.netfilter import body_attributes

ATTEMPTS = 10  # at an answer that other programs' commits interrupt
FAMILIES = {1: "inet", 2: "ip", 5: "netdev", 10: "ip6"}  # NFPROTO_*, by nft's words
_NETDEV_HOOKS = ("ingress", "egress")
_INET_HOOKS = (*nft.HOOKS, "ingress")
OF_KUBERNETES = "KUBE-"
"""The prefix of chains of kubelet and kube-proxy.  kubelet's KUBE-FIREWALL drops only packets to 127.0.0.0/8 from
elsewhere, and `doctor` reports kube-proxy's chains by themselves."""
OURS_AND_PROXIES = frozenset({TABLE, "kube-proxy"})
"""Tables that aren't read, beside dormant tables: ours, and that of kube-proxy's nftables mode."""
_STOPS = frozenset({b"reject\0", b"DROP\0", b"REJECT\0"})
_INTERESTING = (b"immediate\0", b"reject\0", b"lookup\0", b"target\0")
"""A rule without any of these stops no packet, and isn't parsed."""

# NFTA_RULE_EXPRESSIONS, NFTA_IMMEDIATE_DATA, NFTA_LOOKUP_SET, NFTA_TARGET_NAME, NFTA_RULE_CHAIN
_EXPRESSIONS, _IMMEDIATE_DATA, _LOOKUP_SET, _TARGET_NAME, _RULE_CHAIN = 4, 2, 1, 1, 2


class _TableKey(NamedTuple):
    family: int
    table: str


class _Chain:
    """A chain: its hook ("" if it has none), whether it stops packets by itself, and the chains that it leads to."""

    def __init__(self, hook: str, *, has_drop_policy: bool) -> None:
        self.hook = hook
        self.has_drop_policy = has_drop_policy
        self.stops = False
        self.leads_to: set[str] = set()


def dropping_chains() -> list[DroppingChain]:
    """Return the base chains of other programs that can drop packets, by family, table and name.

    Raises:
        Unavailable: the kernel does not answer.
    """
    for _ in range(ATTEMPTS):
        try:
            return sorted(_found())
        except InterruptedError:
            continue
        except OSError as error:
            raise Unavailable(why(error)) from error
    raise Unavailable(f"the nftables ruleset changed {ATTEMPTS} times while it was being read")


def _found() -> Iterator[DroppingChain]:
    tables: dict[_TableKey, dict[str, _Chain]] = {}
    for family in FAMILIES:
        left_out = OURS_AND_PROXIES | frozenset(_dormant(family))
        for held in map(body_attributes, _dump(nft.GET_CHAIN, family)):
            name = text_of(held[nft.CHAIN_NAME])
            key = _TableKey(family, text_of(held[nft.OF_TABLE]))
            if key.table not in left_out and not name.startswith(OF_KUBERNETES):
                tables.setdefault(key, {})[name] = _chain(family, held)
        _read_rules(tables, family)
    for (family, table), chains in tables.items():
        for name, chain in chains.items():
            if chain.hook and (by := _why(chains, name)):
                yield DroppingChain(FAMILIES[family], table, name, chain.hook, by)


def _dormant(family: int) -> Iterator[str]:
    """Yield the tables that no packet comes to, as they are dormant."""
    for held in map(body_attributes, _dump(nft.GET_TABLE, family)):
        if number_of(held[nft.TABLE_FLAGS]) & nft.DORMANT:
            yield text_of(held[nft.OF_TABLE])


def _chain(family: int, held: Attributes) -> _Chain:
    if nft.CHAIN_HOOK not in held:
        return _Chain("", has_drop_policy=False)
    number = number_of(attribute_map(held[nft.CHAIN_HOOK])[nft.HOOK_NUMBER])
    hooks = _NETDEV_HOOKS if FAMILIES[family] == "netdev" else _INET_HOOKS
    policy = number_of(held.get(nft.CHAIN_POLICY, b"\1"))
    return _Chain(hooks[number] if number < len(hooks) else str(number), has_drop_policy=policy == nft.DROP)


def _read_rules(tables: Mapping[_TableKey, Mapping[str, _Chain]], family: int) -> None:
    for body in _dump(nft.GET_RULE, family):
        if not any(word in body for word in _INTERESTING):
            continue
        held = body_attributes(body)
        key = _TableKey(family, text_of(held[nft.OF_TABLE]))
        chain = tables.get(key, {}).get(text_of(held[_RULE_CHAIN]))
        if chain is not None:
            for _, item in attributes_of(held.get(_EXPRESSIONS, b"")):
                _read_expression(key, chain, attribute_map(item))


def _read_expression(key: _TableKey, chain: _Chain, expression: Attributes) -> None:
    name, data = text_of(expression[nft.EXPRESSION_NAME]), attribute_map(expression.get(nft.EXPRESSION_DATA, b""))
    match name:
        case "reject":
            chain.stops = True
        case "target" if data.get(_TARGET_NAME, b"") in _STOPS:
            chain.stops = True
        case "immediate" if _IMMEDIATE_DATA in data:
            _read_verdict(chain, attribute_map(data[_IMMEDIATE_DATA]))
        case "lookup" if _LOOKUP_SET in data:
            for held in _elements(key, data[_LOOKUP_SET]):
                _read_verdict(chain, attribute_map(held.get(nft.ELEMENT_DATA, b"")))


def _read_verdict(chain: _Chain, data: Attributes) -> None:
    if nft.DATA_VERDICT not in data:
        return
    verdict = attribute_map(data[nft.DATA_VERDICT])
    chain.stops |= number_of(verdict[nft.VERDICT_CODE], signed=True) == nft.DROP
    if nft.VERDICT_CHAIN in verdict:
        chain.leads_to.add(text_of(verdict[nft.VERDICT_CHAIN]))


def _elements(key: _TableKey, name: bytes) -> Iterator[Attributes]:
    """The elements of a map of verdicts, none of any other set."""
    wanted = named(nft.OF_TABLE, key.table) + named(nft.LIST_SET, text_of(name))
    if not _has_verdicts(key, text_of(name)):
        return
    for body in _dump(nft.GET_ELEMENTS, key.family, wanted):
        for _, item in attributes_of(body_attributes(body).get(nft.LIST_ELEMENTS, b"")):
            yield attribute_map(item)


def _has_verdicts(key: _TableKey, name: str) -> bool:
    wanted = named(nft.OF_TABLE, key.table) + named(nft.SET_NAME, name)
    with open_socket() as kernel:
        (held,) = map(body_attributes, bodies(kernel, nft.request(nft.GET_SET, ACKNOWLEDGE, key.family, wanted)))
    return number_of(held.get(nft.SET_DATA_TYPE, b"")) == nft.DATA_TYPE_VERDICT


def _why(chains: Mapping[str, _Chain], start: str) -> str:
    """How a base chain can drop a packet, "" if it can't."""
    if chains[start].has_drop_policy:
        return "its policy is drop"
    seen, waiting = {start}, [start]
    while waiting:
        name = waiting.pop()
        if chains[name].stops:
            return "a rule drops or rejects" if name == start else f"a rule in the chain {name} drops or rejects"
        near = sorted(each for each in chains[name].leads_to if each in chains and each not in seen)
        seen.update(near)
        waiting += near
    return ""


def _dump(kind: int, family: int, attributes: bytes = b"") -> list[bytes]:
    with open_socket() as kernel:
        return list(bodies(kernel, nft.request(kind, DUMP, family, attributes)))
