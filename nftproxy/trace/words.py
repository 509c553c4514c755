"""What each chain of the templates does with a packet, in words, rule by rule.

A rule is known by its chain and by what it names or does, in the text of nft, whose versions write matches differently.
Every chain and every rule of the templates has its words here (tests/trace/test_words.py); other people's templates may
have more, and those show as the nft text that they are.

A sentence says what is so, and after a colon what follows from it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MARK = "marks the packet for masquerading"


class ChainWords(NamedTuple):
    """What to say of a chain's rules, each as the pattern that finds it and a sentence; the first that fits counts.

    `otherwise` is for a packet that none of them matches; "" where that means nothing.  Sentences may use the
    groups of the pattern of the chain's name.
    """

    rules: tuple[tuple[str, str], ...]
    otherwise: str = ""


_LIST = r"(?P<list>(?:nodeport-)?(?:tcp|udp|sctp)-(?:local-)?(?:consistent-)?endpoints)"

_LOCAL_POLICY = (
    (r"type local .*mark set", f"the node's own connection: {MARK}"),
    (r"type local .*map @", "the node's own connection: every endpoint may serve it, on any node"),
    (r"map @", "a local source: every endpoint may serve it, on any node, and its address is kept"),
)
_UNTRANSLATED = (
    (
        r"goto (?:refuse|count-(?:nodeport-)?no-endpoint)",
        "the front has no endpoint on any node: rejects the connection",
    ),
    (r"drop|unserved", "the front has endpoints, but none that this packet may use: drops the packet"),
)
_COUNT = (r"update @", "counts it for its Service")
_TRANSLATE = ChainWords(
    (
        (r"jump guard", "the first packet of a connection: looks for source ranges first"),
        (r"jump services", "the first packet of a connection: looks for its Service"),
    )
)
_ASK_TRANSLATED = (r"jump translated", "a new connection: looks whether it was translated")
_FILTER = ChainWords((_ASK_TRANSLATED, (r"jump new-", "a new connection: looks whether it may go on")))
_ASK_UNTRANSLATED = (r"jump untranslated$", "was not translated: looks whether this is a front")
_DRAW = ChainWords(
    (
        (r"vmap @", "the number says from which list, and of how many: goes to its chain"),
        (r"drop|goto count-", "the chain for this number has just gone: drops the packet"),
    )
)
CHAINS: dict[str, ChainWords] = {
    "guard": ChainWords(
        ((r"jump admit", "source ranges guard this front: writes the list's name over the packet's address"),),
        otherwise="no source ranges guard this front",
    ),
    "admit": ChainWords(
        (
            (r"drop|goto count-", "the list doesn't have the source: drops the packet"),
            (r"set ct original", "the list has the source: admits the packet, and puts its address back"),
        )
    ),
    "guard-translated": ChainWords(
        ((r"jump admit-translated", "source ranges guard this front: writes the list's name over the address"),),
        otherwise="no source ranges guard this front",
    ),
    "admit-translated": ChainWords(
        (
            (r"drop|goto count-", "the list doesn't have the source: drops the packet"),
            (r"set ct reply", "the list has the source: admits the packet, and puts the endpoint's address back"),
        )
    ),
    "nat-prerouting": _TRANSLATE,
    "nat-output": _TRANSLATE,
    "services": ChainWords(
        (
            (r"@cluster-ips (?:meta )?mark set", f"a ClusterIP, and every source is to be hidden: {MARK}"),
            (r"@cluster-ips", f"a ClusterIP, and a source that isn't local: {MARK}"),
            (r"@masqueraded", f"an external address with policy Cluster: {MARK}"),
            (r"@local-policy", "an external address with policy Local: looks who asks"),
            (r"map @services", "the front is a Service's: writes how an endpoint is drawn over the packet's address"),
            (r"jump nodeports", "the node's own address: looks for a node port"),
        ),
        otherwise="no Service has this address and port",
    ),
    "local-policy": ChainWords(_LOCAL_POLICY, otherwise="a source from elsewhere: endpoints of this node serve it"),
    "nodeports": ChainWords(
        (
            (r"@nodeport-masqueraded", f"a node port with policy Cluster: {MARK}"),
            (r"@nodeport-local-policy", "a node port with policy Local: looks who asks"),
            (
                r"map @nodeport-services",
                "the node port is a Service's: writes how an endpoint is drawn over the packet's address",
            ),
        ),
        otherwise="no Service has this node port",
    ),
    "nodeport-local-policy": ChainWords(
        _LOCAL_POLICY, otherwise="a source from elsewhere: endpoints of this node serve it"
    ),
    "draw": _DRAW,
    "draw-nodeport": _DRAW,
    "undrawn": ChainWords(((r"set ct original", "there is no endpoint to draw here: puts the packet's address back"),)),
    rf"{_LIST}-of-(?P<count>\d+)(?:-by-client|-by-client-and-port|-in-turn-\d)?": ChainWords(
        (
            (r"jhash.*sport", "chooses by the client's address and port, of {count}: writes the slot over the address"),
            (r"jhash", "chooses by the client's address, of {count}: writes the slot over the packet's address"),
            (r"numgen inc", "takes the next of {count} in turn: writes the slot over the packet's address"),
            (r"numgen", "draws one of {count}: writes the slot over the packet's address"),
            (r"goto translate-", "goes to translate it to the endpoint in that slot"),
        )
    ),
    rf"{_LIST}-of-(?P<count>\d+)(?:-by-client|-by-client-and-port|-in-turn-\d)?-sticky": ChainWords(
        (
            (r"jump follow-", "the front has session affinity: looks whether the client is remembered"),
            (r"goto", "no pod is to be used again: draws an endpoint"),
        )
    ),
    rf"translate-{_LIST}": ChainWords(
        (
            (r"dnat", "the slot has an endpoint: translates to it"),
            (r"daddr set", "the slot has just gone: takes the first"),
            (r"drop|goto count-", "the endpoints have just gone: drops the packet"),
        )
    ),
    rf"follow-{_LIST}": ChainWords(
        ((r"vmap @", "finds for how long clients are remembered"),),
        otherwise="session affinity has just gone",
    ),
    rf"follow-{_LIST}-\d+": ChainWords(
        (
            (r"jump revisit-", "the client is remembered: writes its pod over the packet's address"),
            (r"delete @", "the remembered pod may no longer be used: forgets it"),
        ),
        otherwise="the client is not remembered",
    ),
    rf"revisit-{_LIST}": ChainWords(((r"dnat", "the remembered pod may be used still: translates to it"),)),
    "remember-prerouting": ChainWords((_ASK_TRANSLATED,)),
    "translated": ChainWords(
        (
            (r"set ct original", "was sent where it is translated to: puts the packet's address back"),
            (r"jump guard-translated", "looks for source ranges again, as they may just have come"),
            (r"jump remember", "was translated: looks for session affinity"),
        )
    ),
    "remember": ChainWords(
        (
            (r"jump count-", "a connection that an endpoint gets: counts it"),
            (r"jump watch", "a first packet that is sent again: looks whether its front is watched"),
            (r"map @affinity", "the front has session affinity: writes for how long over the packet's address"),
            (r"map @nodeport-affinity", "the node port has session affinity: writes for how long over the address"),
        ),
        otherwise="no session affinity",
    ),
    "remember-client": ChainWords(
        (
            (r"vmap @", "goes to remember the client for so long"),
            (r"set ct reply", "session affinity has just gone: puts the endpoint's address back"),
        )
    ),
    r"remember-(?:tcp|udp|sctp)-(?P<seconds>\d+)": ChainWords(
        (
            (r"set ct reply", "puts the endpoint's address back"),
            (r"update @", "remembers this client's pod for {seconds} s"),
        ),
        otherwise="the map of clients is full: remembers nothing",
    ),
    "filter-input": _FILTER,
    "filter-forward": _FILTER,
    "filter-output": _FILTER,
    "new-delivered": ChainWords(
        (
            (r"jump untranslated-nodeports", "was not translated: looks whether this is a node port"),
            _ASK_UNTRANSLATED,
        )
    ),
    "new-sent": ChainWords(
        (
            _ASK_UNTRANSLATED,
            (r"jump unused-cluster-ips", "looks whether the destination is an address for Services"),
        )
    ),
    "untranslated": ChainWords(_UNTRANSLATED, otherwise="this is no front"),
    "untranslated-nodeports": ChainWords(_UNTRANSLATED, otherwise="this is no Service's node port"),
    "unused-cluster-ips": ChainWords(
        (
            (r"goto refuse", "a ClusterIP, but no port of its Service: rejects the connection"),
            (r"drop", "an address for Services that none has: drops the packet"),
        ),
        otherwise="no address of Services",
    ),
    "watch": ChainWords(
        (
            (r"@watched", "the front leaves out who doesn't answer: goes to note the connection"),
            (r"@nodeport-watched", "the node port leaves out who doesn't answer: goes to note the connection"),
        ),
        otherwise="not watched",
    ),
    "note-unanswered": ChainWords(
        ((r"update @", "notes a connection without an answer"),),
        otherwise="so many are noted already that these are enough",
    ),
    "count-connection": ChainWords((_COUNT,), otherwise="the front is no Service's: counts nothing"),
    "count-(?:nodeport-)?no-endpoint": ChainWords((_COUNT, (r"goto refuse", "rejects the connection"))),
    "count-(?:nodeport-)?unserved": ChainWords(
        (
            (
                r"goto count-(?:nodeport-)?none-local",
                "policy Local, and only other nodes have endpoints: drops the packet",
            ),
            (r"goto count-", "a change of the rules came in between: drops the packet"),
        )
    ),
    "count-(?:(?:nodeport-)?(?:none-local|race)|not-admitted(?:-translated)?)": ChainWords(
        (_COUNT, (r"drop", "drops the packet"))
    ),
    "screen-(?:input|postrouting)": ChainWords(
        ((r"jump screen", "the first packet of a connection: looks what its client may not do"),)
    ),
    "screen": ChainWords(
        (
            (r"goto screen-front", "annotations say what clients of this front may not do"),
            (r"goto screen-nodeport", "annotations say what clients of this node port may not do"),
        ),
        otherwise="clients may do everything",
    ),
    "screen-(?:front|nodeport)": ChainWords(
        (
            (r"jump screen-denied", "some sources are denied: writes the list's name over the address"),
            (r"jump screen-allowed", "source ranges guard this node port: writes the list's name over the address"),
            (r"jump screen-rate", "new connections are limited: writes the limit's number over the address"),
            (r"jump screen-connections", "connections are limited: writes the limit's number over the address"),
        ),
        otherwise="nothing else is asked of the client",
    ),
    "screen-denied": ChainWords(
        (
            (r"goto drop-", "the list has the source: drops the packet"),
            (r"set ct reply", "the list doesn't have the source: puts the address back"),
        )
    ),
    "screen-allowed": ChainWords(
        (
            (r"goto drop-", "the list doesn't have the source: drops the packet"),
            (r"set ct reply", "the list has the source: puts the address back"),
        )
    ),
    "screen-(?:rate|connections)": ChainWords(
        (
            (r"vmap @", "goes to the limit of this number"),
            (r"set ct reply", "the client is within the limit: puts the address back"),
        )
    ),
    r"rate-(?P<rate>\d+)-(?P<burst>\d+)": ChainWords(
        ((r"goto drop-", "more than {rate} new connections per second, and {burst} in a row: drops the packet"),),
        otherwise="no more than {rate} new connections per second, or {burst} in a row",
    ),
    r"connections-(?P<most>\d+)": ChainWords(
        ((r"goto drop-", "more than {most} connections of this client: drops the packet"),),
        otherwise="no more than {most} connections of this client",
    ),
    "drop-(?:denied|not-admitted|over-rate|over-connections)": ChainWords((_COUNT, (r"drop", "drops the packet"))),
    "refuse": ChainWords(
        (
            (r"reject with tcp reset", "answers with a TCP reset"),
            (r"reject", "answers with an ICMP error, port unreachable"),
        )
    ),
    "nat-postrouting": ChainWords(((r"jump hide-source", "leaves the node: looks whether to hide its source"),)),
    "hide-source": ChainWords(
        (
            (r"mark", "marked for masquerading: clears the mark"),
            (r"@hairpin", "a pod that reaches itself through a Service: its source must be hidden"),
        ),
        otherwise="keeps its source",
    ),
    "take-node-address": ChainWords(
        (
            (r"random", "masquerades: the source is the node's address and a random port"),
            (r"masquerade", "masquerades: the source is the node's address, with the client's port if that is free"),
        )
    ),
}


class Spoken(NamedTuple):
    """What is said of a chain of the templates: its words, and what its name says."""

    words: ChainWords
    names: dict[str, str]

    def rule(self, text: str) -> str:
        """The sentence for a rule, given as nft prints it; "" if there is none."""
        found = (sentence for pattern, sentence in self.words.rules if re.search(pattern, text))
        return next(found, "").format(**self.names)


def of_chain(name: str) -> Spoken | None:
    """What is said of a chain; None if it isn't one of the templates'."""
    for pattern, words in CHAINS.items():
        if found := re.fullmatch(pattern, name):
            return Spoken(words, found.groupdict())
    return None
