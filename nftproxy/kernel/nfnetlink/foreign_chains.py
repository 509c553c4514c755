"""Chains of other programs that can keep packets from Services: base chains of any table, by their policy or a rule in
reach.

Such chains drop packets, or come before ours and exempt packets from connection tracking or translate them.  The kernel
describes each rule by its expressions.  Only expressions with such an effect, or that lead to another chain, are read:
verdicts, `reject`, `notrack`, `dnat`, `redirect`, targets of iptables, and lookups in verdict maps.  Matches aren't
judged, so a chain that is found may have its effect only on packets that nobody sends.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nftproxy.kernel.nfnetlink.nft_queries import query
from nftproxy.model.addresses import TABLE
from nftproxy.model.base_chains import Effect, ForeignChain, rule_with
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import DUMP, Attributes, attribute_map, attributes_of, named, number_of, text_of

FAMILIES = {1: "inet", 2: "ip", 5: "netdev", 7: "bridge", 10: "ip6"}  # NFPROTO_*, by nft's words
OF_KUBERNETES = "KUBE-"
"""The prefix of chains of kubelet and kube-proxy.  kubelet's KUBE-FIREWALL drops only packets to 127.0.0.0/8 from
elsewhere, and `doctor` reports kube-proxy's chains by themselves."""
OURS_AND_PROXIES = frozenset({TABLE, "kube-proxy"})
"""Tables that aren't read, beside dormant tables: ours, and that of kube-proxy's nftables mode."""
_TARGETS = {b"reject": Effect.DROPS, b"DROP": Effect.DROPS, b"REJECT": Effect.DROPS}
"""Effects by the names of targets of iptables.  Its DNAT and REDIRECT come after our chains, at priority -100."""
_is_interesting = re.compile(rb"(?:immediate|reject|lookup|target|notrack|nat|redir)\0").search
"""A rule without any of these words has no effect, and isn't parsed."""
_FIRST = {Effect.EXEMPTS: -201, Effect.TRANSLATES: -101}
"""The highest priority at which a chain has an effect on our packets: before connection tracking, and not after our
translation.  At the same priority the kernel runs the chain first that was made last."""
_ARRIVALS = ("prerouting", "output")
"""The hooks at which ours translate."""

# NFTA_RULE_EXPRESSIONS, NFTA_IMMEDIATE_DATA, NFTA_LOOKUP_SET, NFTA_TARGET_NAME, NFTA_TARGET_INFO, NFTA_RULE_CHAIN
_EXPRESSIONS, _IMMEDIATE_DATA, _LOOKUP_SET, _TARGET_NAME, _TARGET_INFO, _RULE_CHAIN = 4, 2, 1, 1, 3, 2
_NAT_TYPE, _DESTINATION = 1, 1  # NFTA_NAT_TYPE, NFT_NAT_DNAT
_NOTRACK = 1  # XT_CT_NOTRACK, in the flags with which struct xt_ct_target_info begins


class _TableKey(NamedTuple):
    family: int
    table: str


@dataclass
class _Chain:
    """A chain: its hook ("" if it has none), its priority, the effects of its rules, and the chains they lead to."""

    hook: str = ""
    priority: int = 0
    has_drop_policy: bool = False
    is_of_bridge: bool = False
    effects: set[Effect] = field(default_factory=set)
    leads_to: set[str] = field(default_factory=set)

    def can_have(self, effect: Effect) -> bool:
        """Return whether a rule with this effect would have it on packets to Services, at this hook and priority."""
        if effect not in _FIRST:
            return True
        return not self.is_of_bridge and self.hook in _ARRIVALS and self.priority <= _FIRST[effect]


def foreign_chains() -> list[ForeignChain]:
    """Return the base chains of other programs that can keep packets from Services, by family, table and name.

    Raises:
        Unavailable: the kernel does not answer.
    """
    return sorted(_found())


def _found() -> Iterator[ForeignChain]:
    tables: dict[_TableKey, dict[str, _Chain]] = {}
    for family in FAMILIES:
        left_out = OURS_AND_PROXIES | frozenset(_dormant(family))
        for held in query(nft.GET_CHAIN, family, flags=DUMP):
            name = text_of(held[nft.CHAIN_NAME])
            key = _TableKey(family, text_of(held[nft.OF_TABLE]))
            if key.table not in left_out and not name.startswith(OF_KUBERNETES):
                tables.setdefault(key, {})[name] = _chain(family, held)
        _read_rules(tables, family)
    for (family, table), chains in tables.items():
        for name, chain in chains.items():
            for effect in Effect if chain.hook else ():
                if chain.can_have(effect) and (by := _why(chains, name, effect)):
                    yield ForeignChain(FAMILIES[family], table, name, chain.hook, effect, by)


def _dormant(family: int) -> Iterator[str]:
    """Yield the tables that no packet comes to, as they are dormant."""
    for held in query(nft.GET_TABLE, family, flags=DUMP):
        if number_of(held[nft.TABLE_FLAGS]) & nft.DORMANT:
            yield text_of(held[nft.OF_TABLE])


def _chain(family: int, held: Attributes) -> _Chain:
    if nft.CHAIN_HOOK not in held:
        return _Chain()
    hook = attribute_map(held[nft.CHAIN_HOOK])
    number, priority = number_of(hook[nft.HOOK_NUMBER]), number_of(hook[nft.HOOK_PRIORITY], signed=True)
    hooks = nft.NETDEV_HOOKS if FAMILIES[family] == "netdev" else nft.HOOKS
    policy = number_of(held.get(nft.CHAIN_POLICY, b"\1"))
    return _Chain(
        hooks[number] if number < len(hooks) else str(number),
        priority,
        has_drop_policy=policy == nft.DROP,
        is_of_bridge=FAMILIES[family] == "bridge",
    )


def _read_rules(tables: Mapping[_TableKey, Mapping[str, _Chain]], family: int) -> None:
    for held in query(nft.GET_RULE, family, flags=DUMP, is_wanted=_is_interesting):
        key = _TableKey(family, text_of(held[nft.OF_TABLE]))
        chain = tables.get(key, {}).get(text_of(held[_RULE_CHAIN]))
        if chain is not None:
            for _, item in attributes_of(held.get(_EXPRESSIONS, b"")):
                _read_expression(key, chain, attribute_map(item))


def _read_expression(key: _TableKey, chain: _Chain, expression: Attributes) -> None:
    name, data = text_of(expression[nft.EXPRESSION_NAME]), attribute_map(expression.get(nft.EXPRESSION_DATA, b""))
    match name:
        case "reject":
            chain.effects.add(Effect.DROPS)
        case "notrack":
            chain.effects.add(Effect.EXEMPTS)
        case "redir":
            chain.effects.add(Effect.TRANSLATES)
        case "nat" if number_of(data[_NAT_TYPE]) == _DESTINATION:
            chain.effects.add(Effect.TRANSLATES)
        case "target":
            chain.effects |= _target_effects(data)
        case "immediate" if _IMMEDIATE_DATA in data:
            _read_verdict(chain, attribute_map(data[_IMMEDIATE_DATA]))
        case "lookup" if _LOOKUP_SET in data:
            for held in _elements(key, data[_LOOKUP_SET]):
                _read_verdict(chain, attribute_map(held.get(nft.ELEMENT_DATA, b"")))


def _target_effects(data: Attributes) -> set[Effect]:
    """The effects of a target of iptables."""
    name = data.get(_TARGET_NAME, b"").rstrip(b"\0")
    flags = int.from_bytes(data.get(_TARGET_INFO, b"")[:2], sys.byteorder)
    if name == b"NOTRACK" or (name == b"CT" and flags & _NOTRACK):
        return {Effect.EXEMPTS}
    return {_TARGETS[name]} if name in _TARGETS else set()


def _read_verdict(chain: _Chain, data: Attributes) -> None:
    if nft.DATA_VERDICT not in data:
        return
    verdict = attribute_map(data[nft.DATA_VERDICT])
    if number_of(verdict[nft.VERDICT_CODE], signed=True) == nft.DROP:
        chain.effects.add(Effect.DROPS)
    if nft.VERDICT_CHAIN in verdict:
        chain.leads_to.add(text_of(verdict[nft.VERDICT_CHAIN]))


def _elements(key: _TableKey, name: bytes) -> Iterator[Attributes]:
    """The elements of a map of verdicts, none of any other set."""
    wanted = named(nft.OF_TABLE, key.table) + named(nft.LIST_SET, text_of(name))
    if not _has_verdicts(key, text_of(name)):
        return
    for held in query(nft.GET_ELEMENTS, key.family, wanted, flags=DUMP):
        for _, item in attributes_of(held.get(nft.LIST_ELEMENTS, b"")):
            yield attribute_map(item)


def _has_verdicts(key: _TableKey, name: str) -> bool:
    wanted = named(nft.OF_TABLE, key.table) + named(nft.SET_NAME, name)
    found = query(nft.GET_SET, key.family, wanted)
    return any(number_of(held.get(nft.SET_DATA_TYPE, b"")) == nft.DATA_TYPE_VERDICT for held in found)


def _why(chains: Mapping[str, _Chain], start: str, effect: Effect) -> str:
    """How a base chain can have an effect, "" if it can't."""
    if effect is Effect.DROPS and chains[start].has_drop_policy:
        return "its policy is drop"
    return rule_with(
        effect, start, lambda name: effect in chains[name].effects, lambda name: chains[name].leads_to & chains.keys()
    )
