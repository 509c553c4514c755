"""From what the kernel reports of a packet to the steps of its way.

The kernel names chains and rules' handles; the steps have the hook, the rule as nft prints it, and a sentence.  What
says nothing is left out: the end of a chain in which a rule has matched, or whose end means nothing, and policies that
accept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from nftproxy.kernel.nftrace import Sort, TraceMessage, Verdict
from nftproxy.kernel.table_copy import Hook
from nftproxy.model.addresses import TABLE, Family
from nftproxy.trace.words import of_chain

UNKNOWN_CHAIN = "a chain of other templates than nftproxy's own"


class Step(msgspec.Struct, frozen=True):
    """One thing that happens to a packet on its way.

    `hook` and `priority` say where the base chain is called under which `chain` runs; `rule` is the rule that matched,
    as nft prints it, "" at the end of a chain or where nft can't print it; `verdict` is nft's word for what it decides;
    `words` is a sentence for people.
    """

    hook: str
    priority: int
    chain: str
    rule: str
    verdict: str
    words: str


class RuleBook(NamedTuple):
    """What is needed to read a trace: the base chains, and each rule's text by its handle."""

    hooks: Mapping[Family, Mapping[str, Hook]]
    rules: Mapping[Family, Mapping[int, str]]


def steps(messages: Iterable[TraceMessage], book: RuleBook) -> list[Step]:
    """The way of the packet that the messages are about."""
    return list(_steps(messages, book))


def _steps(messages: Iterable[TraceMessage], book: RuleBook) -> Iterator[Step]:
    hook = Hook("", 0)
    spoken = set[str]()  # chains of this hook in which a rule has matched: their end says nothing more
    for each in messages:
        if each.table != TABLE:
            continue
        if (base := book.hooks[each.family].get(each.chain, hook)) != hook:
            hook = base
            spoken.clear()
        is_end = each.sort is not Sort.RULE or not each.handle
        rule = book.rules[each.family].get(each.handle, "")
        words = _end_words(each, has_matched=each.chain in spoken) if is_end else _rule_words(each, rule)
        if not is_end:
            spoken.add(each.chain)
        if words:
            yield Step(hook.name, hook.priority, each.chain, rule, _verdict(each), words)


def _rule_words(message: TraceMessage, rule: str) -> str:
    spoken = of_chain(message.chain)
    if spoken is None:
        return f"{UNKNOWN_CHAIN}: {rule or _verdict(message)}"
    return spoken.rule(f"{rule} {_verdict(message)}") or rule or _verdict(message)


def _end_words(message: TraceMessage, *, has_matched: bool) -> str:
    if message.verdict is Verdict.DROP:
        return "the chain's policy: drops the packet"
    spoken = of_chain(message.chain)
    return spoken.words.otherwise if spoken and not has_matched else ""


def _verdict(message: TraceMessage) -> str:
    word = message.verdict.name.lower()
    return f"{word} {message.target}" if message.target else word


_CHAIN = re.compile(r"^\tchain (\S+) \{")
_RULE = re.compile(r"^\t\t(.*?) # handle (\d+)$")


def rules_by_handle(listing: str) -> dict[int, str]:
    """The text of each rule of a table that nft has listed with handles."""
    found: dict[int, str] = {}
    is_chain = False
    for line in listing.splitlines():
        if line.startswith("\t}"):
            is_chain = False
        elif _CHAIN.match(line):
            is_chain = True
        elif is_chain and (rule := _RULE.match(line)):
            found[int(rule[2])] = rule[1]
    return found
