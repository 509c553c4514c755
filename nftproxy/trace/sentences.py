"""Turn the kernel's trace of a packet into steps.

The kernel names chains and handles of rules.  A step has the hook, the rule as nft prints it, and a sentence.  The
sentence of a rule is its comment, which the templates write beside the rule.  Messages without news are left out: an
end of a chain that has no meaning, or after a rule of the chain has matched, and policies that accept.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from nftproxy.kernel.nfnetlink.nftrace import TraceMessage, TraceType, TraceVerdict
from nftproxy.kernel.nfnetlink.table_copy import Hook
from nftproxy.model.addresses import TABLE, Family

_NO_RANGES = "no source ranges guard this front"
_ELSEWHERE = "a source from elsewhere: endpoints of this node serve it"
_LIST = r"(?:nodeport-)?(?:tcp|udp|sctp)-(?:local-)?(?:consistent-)?endpoints"
ENDS = {
    "guard": _NO_RANGES,
    "guard-translated": _NO_RANGES,
    "services": "no Service is served at this address and port",
    "local-policy": _ELSEWHERE,
    "nodeports": "no Service is served at this node port",
    "nodeport-local-policy": _ELSEWHERE,
    rf"follow-{_LIST}": "session affinity is missing, or was just deleted",
    rf"follow-{_LIST}-\d+": "the client is not remembered",
    "remember": "no session affinity",
    r"remember-(?:tcp|udp|sctp)-\d+": "the map of clients is full: remembers nothing",
    "untranslated": "this is no front",
    "untranslated-nodeports": "this is no Service's node port",
    "ping": "no Service answers this client",
    "ping-inside": "no Service answers this client",
    "unused-cluster-ips": "no address for Services",
    "watch": "not watched",
    "count-connection": "the front is no Service's: counts nothing",
    "screen": "annotations don't restrict clients",
    "screen-(?:front|nodeport)": "annotations don't restrict clients any further",
    r"rate-(?P<rate>\d+)-(?P<burst>\d+)": "no more than {rate} new connections per second, or {burst} in a row",
    r"connections-(?P<most>\d+)": "no more than {most} connections of this client",
    "hide-source": "keeps its source",
}
"""The sentence for the end of a chain in which no rule has matched."""


class Step(msgspec.Struct, frozen=True):
    """A step of a packet on its way.

    `hook` and `priority` belong to the base chain from which `chain` was reached.  `rule` is the rule that matched,
    as nft prints it, or "" at the end of a chain or if nft can't print it.  `verdict` is nft's word for the decision.
    `words` is a sentence for people: the rule's comment, or the rule itself if it has none.
    """

    hook: str
    priority: int
    chain: str
    rule: str
    verdict: str
    words: str


class RuleBook(NamedTuple):
    """The base chains, and each rule's text by its handle."""

    hooks: Mapping[Family, Mapping[str, Hook]]
    rules: Mapping[Family, Mapping[int, str]]


DROPPED_BY = "another program's chain, in its table"
"""The beginning of the sentence about a packet that another program drops."""


def steps(messages: Iterable[TraceMessage], book: RuleBook, unspoken: Collection[str]) -> list[Step]:
    """The way of the packet that the messages are about."""
    return list(_steps(messages, book, unspoken))


def _steps(messages: Iterable[TraceMessage], book: RuleBook, unspoken: Collection[str]) -> Iterator[Step]:
    hook = Hook("", 0)
    spoken = set[str]()  # chains of this hook in which a rule has matched: their end says nothing more
    for each in messages:
        if each.table != TABLE:
            if each.verdict is TraceVerdict.DROP and each.table not in unspoken:
                yield Step("", 0, each.chain, "", _verdict(each), f"{DROPPED_BY} {each.table}: drops the packet")
            continue
        if (base := book.hooks[each.family].get(each.chain, hook)) != hook:
            hook = base
            spoken.clear()
        is_end = each.kind is not TraceType.RULE or not each.handle
        rule, sentence = _without_comment(book.rules[each.family].get(each.handle, ""))
        if is_end:
            words = _end_words(each, has_matched=each.chain in spoken)
        else:
            words = sentence or rule or _verdict(each)
            spoken.add(each.chain)
        if words:
            yield Step(hook.name, hook.priority, each.chain, rule, _verdict(each), words)


def matched(messages: Iterable[TraceMessage], unspoken: Collection[str]) -> tuple[str, ...]:
    """Name the chains of other programs in which a rule matched, each once, in their order."""
    foreign = (each for each in messages if each.table not in {TABLE, *unspoken} and each.kind is TraceType.RULE)
    return tuple(dict.fromkeys(f"the chain {each.chain} of the table {each.table}" for each in foreign))


def _without_comment(rule: str) -> tuple[str, str]:
    """A rule as nft prints it and its comment, "" if it has none."""
    text, _, comment = rule.partition(' comment "')
    return text, comment.removesuffix('"')


def _end_words(message: TraceMessage, *, has_matched: bool) -> str:
    if message.verdict is TraceVerdict.DROP:
        return "the chain's policy: drops the packet"
    if has_matched:
        return ""
    found = ((re.fullmatch(pattern, message.chain), sentence) for pattern, sentence in ENDS.items())
    return next((sentence.format(**match.groupdict()) for match, sentence in found if match), "")


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
