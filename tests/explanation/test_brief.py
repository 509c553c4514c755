"""`explain` in few lines."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest

from nftproxy.explanation.answer import Explanation
from nftproxy.explanation.brief import HINT, MOST_LINES, brief
from nftproxy.fleet.inventory import ClusterNode
from nftproxy.fleet.node_answers import NodeAnswer
from nftproxy.fleet.outlooks import MergedExplanations
from tests.support.command import nftproxy

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def asked(to: str, *options: str, example: str = "everything") -> str:
    """The output of `explain` for a Service of an example."""
    where = EXAMPLES / example
    return nftproxy(
        "explain", to, where / "manifests", "--config", where / "config.yaml", "--node", "node-a", *options
    ).out


def explanation(to: str) -> Explanation:
    """An explanation of the example "everything"."""
    return msgspec.json.decode(asked(to, "-o", "json"), type=Explanation)


def enlarged(small: Explanation, ports: int, endpoints: int) -> Explanation:
    """The same for a Service with many times as many ports and endpoints."""
    places = []
    for number, place in itertools.product(range(ports), small.places):
        cases = [
            msgspec.structs.replace(
                case,
                endpoints=tuple(
                    msgspec.structs.replace(each, port=port, share=each.share / endpoints)
                    for port, each in itertools.product(range(1, endpoints + 1), case.endpoints)
                ),
            )
            for case in place.cases
        ]
        places.append(msgspec.structs.replace(place, port=place.port + number, cases=tuple(cases)))
    return msgspec.structs.replace(small, places=tuple(places))


GATEWAY = explanation("svc/edge/gateway")


def test_a_short_text_is_whole() -> None:
    """A text of at most 40 lines is printed as it is, and -o wide prints any text so."""
    short = asked("10.96.0.20:443")
    assert (short, HINT in short) == (asked("10.96.0.20:443", "-o", "wide"), False)
    assert asked("svc/edge/gateway", "-o", "wide") == f"{GATEWAY}\n"


def test_a_longer_text_has_outcomes() -> None:
    """A Service of both families with six addresses has its sources and outcomes, without lists and shares."""
    lines = asked("svc/edge/gateway").splitlines()
    assert (len(lines) <= MOST_LINES, lines[-1]) == (True, HINT)
    assert lines[2:4] == [
        "10.96.0.20:443/TCP: ClusterIP of Service edge/gateway:https",
        "  from anywhere: translated: to one of 2 endpoints, drawn at random",
    ]


def test_shares_stay_if_they_fit() -> None:
    """500 endpoints with a share are a line, with the names of ten."""
    lines = brief(enlarged(msgspec.structs.replace(GATEWAY, places=GATEWAY.places[:1]), 1, 250))
    assert lines[2:] == [
        "10.96.0.20:443/TCP: ClusterIP of Service edge/gateway:https",
        "  from anywhere: translated: to one of 2 endpoints, drawn at random",
        *(line for line in lines if line.startswith("    0.2 % each: 10.1.0.6:1 edge/gateway-1, 10.1.0.6:10")),
        "",
        HINT,
    ]
    assert lines[4].endswith(" and 490 more")


@pytest.mark.parametrize(("ports", "endpoints"), [(1, 1), (2, 100), (6, 1), (100, 100)])
def test_any_explanation_fits(ports: int, endpoints: int) -> None:
    """However many ports and endpoints a Service has, the text has at most 40 lines."""
    assert len(brief(enlarged(GATEWAY, ports, endpoints))) <= MOST_LINES


def test_faults_come_first_where_lines_are_left_out() -> None:
    """Of 600 addresses that with a wrong element in the kernel is the first line, and the others are counted."""
    large = enlarged(GATEWAY, 100, 1)
    *others, last = large.places
    wrong = msgspec.structs.replace(last.expected[0], is_held=False)
    damaged = msgspec.structs.replace(last, expected=(wrong, *last.expected[1:]))
    lines = brief(msgspec.structs.replace(large, places=(*others, damaged)))
    assert lines[1].startswith(f"{last}: {last.reached}: from pods of this node")
    assert lines[1].endswith(f"; kernel: 1 element is missing or wrong, in {wrong.container}")
    assert lines[-2:] == ["... and 563 more lines", HINT]


@pytest.mark.parametrize("answers", [1, 2, 5, 7, 8, 300])
def test_the_answers_of_many_nodes_fit(answers: int) -> None:
    """However many nodes answer differently, the text has at most 40 lines, with a part for each of seven answers."""
    merged = MergedExplanations()
    for number in range(answers):
        large = msgspec.structs.replace(enlarged(GATEWAY, 3, 1), notes=(f"note {number}",))
        node = ClusterNode(f"node-{number:03}", "pod")
        assert not merged.take(NodeAnswer(node, msgspec.json.encode(large))).problem
    lines = list(merged.text("svc/edge/gateway", is_wide=False))
    assert len(lines) <= MOST_LINES
    assert sum(line.startswith("node-") for line in lines) == min(answers, 7)
    assert len(list(merged.text("svc/edge/gateway", is_wide=True))) > MOST_LINES
