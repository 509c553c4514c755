"""The picture of an explanation: valid, deterministic, complete, and harmless even with hostile names."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from nftproxy.commands.explain import PICTURE
from nftproxy.explanation.answer import Case, EndpointShare, ExplainedPlace, Explanation, Fate, Owner
from nftproxy.explanation.answering import explain
from nftproxy.explanation.explained_extension import added_stages
from nftproxy.explanation.picture import COLUMN, MOST_ENDPOINTS, MOST_PLACES, Picture, picture, svg
from nftproxy.explanation.question import Question, Source, ToService, parse_source, parse_to
from nftproxy.installed import INSTALLED
from nftproxy.model.addresses import Address, Family, Protocol
from tests.support.command import nftproxy
from tests.support.examples import CHECKOUT, EXAMPLES, example_pipeline
from tests.support.factories import pipeline, service, slice_of
from tests.support.selection import every

TEMPLATE = PICTURE.read_text()
ADDED_STAGES = added_stages(INSTALLED)
SVG = "{http://www.w3.org/2000/svg}"
WIDEST = {"set": 7.3, "chain": 7.3, "unused": 7.3, "place": 10.9, "title": 7.3}
"""The width of a character in px in DejaVu, a wide font, by the class of the text.  All other classes take 6.8."""


def _explanations(example: str) -> Iterator[Explanation]:
    seen = example_pipeline(example)
    yield from (explain(seen, Question(ToService(key))) for key in sorted(seen.state.services))
    yield explain(seen, Question(parse_to("10.96.7.7:80")))
    yield explain(seen, Question(parse_to("192.168.0.2:22"), parse_source("outside")))
    yield explain(seen, Question(parse_to("svc/no/such")))


def _texts(drawn: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_picture_is_valid_and_always_the_same(example: str) -> None:
    """Each explanation of the examples is drawn as well-formed SVG, and drawing it again gives the same text."""
    for explanation in _explanations(example):
        drawn = svg(explanation, TEMPLATE, ADDED_STAGES)
        assert ElementTree.fromstring(drawn).tag == f"{SVG}svg"
        assert drawn == svg(explanation, TEMPLATE, ADDED_STAGES)


@pytest.mark.parametrize("example", every(3, EXAMPLES))
def test_a_picture_shows_every_place_source_and_endpoint(example: str) -> None:
    """The picture has each place, each source, and the endpoints with their shares or another fate."""
    for explanation in _explanations(example):
        words = "\n".join(_texts(svg(explanation, TEMPLATE, ADDED_STAGES)))
        for place in explanation.places[:MOST_PLACES]:
            assert f":{place.port}/{place.protocol.name}" in words
            for case in place.cases:
                assert "anywhere" in words or all(source in words for source in case.sources)
                drawn = case.fate in (Fate.ENDPOINT, Fate.FORWARDED)
                for endpoint in case.endpoints if drawn else ():
                    assert f"{endpoint.port}" in words
                    assert not endpoint.share or f"{endpoint.share:.1f} %" in words
                assert drawn or case.fate in (Fate.PASSED, Fate.NODE) or case.fate.value in words


def _overflows(made: Picture) -> list[str]:
    """Return the texts that overflow their card or the sheet."""
    cards = [card for card in made.cards if card.width == COLUMN]
    found = []
    for text in made.texts:
        right = text.x + (0 if text.kind == "percent" else len(text.words) * WIDEST.get(text.kind, 6.8))
        inside = [
            card for card in cards if card.x <= text.x < card.x + COLUMN and card.y <= text.y <= card.y + card.height
        ]
        if right > (inside[0].x + COLUMN if inside else made.width):
            found.append(text.words)
    return found


@pytest.mark.parametrize("example", every(3, EXAMPLES))
def test_words_stay_within_their_cards(example: str) -> None:
    """Even with a wide font no text is wider than its card or the sheet, and cards don't overlap."""
    for explanation in _explanations(example):
        made = picture(explanation, ADDED_STAGES)
        assert _overflows(made) == []
        cards = sorted((card.x, card.y, card.height) for card in made.cards if card.width == COLUMN)
        for (x, y, height), (next_x, next_y, _) in itertools.pairwise(cards):
            assert x != next_x or y + height <= next_y
        assert all(card.y + card.height < made.height for card in made.cards)


HOSTILE = '</text><script>alert("1")</script>&amp;\x1b[2J\u202e\0'


def test_names_are_only_text() -> None:
    """Markup, control characters and direction marks in names are shown as text without any effect."""
    endpoint = EndpointShare(
        Address("10.1.0.4"), 80, HOSTILE, is_local=True, share=100.0, why=HOSTILE, is_masqueraded=False
    )
    case = Case((HOSTILE,), Fate.ENDPOINT, HOSTILE, endpoints=(endpoint,), source_why=HOSTILE)
    place = ExplainedPlace(
        Address("10.96.0.10"),
        Family.IPV4,
        Protocol.TCP,
        80,
        owner=Owner(HOSTILE, HOSTILE, HOSTILE),
        cases=(case, msgspec.structs.replace(case, fate=Fate.DROPPED, endpoints=())),
        notes=(HOSTILE,),
    )
    drawn = svg(Explanation(HOSTILE, HOSTILE, HOSTILE, (place,), (HOSTILE,)), TEMPLATE, ADDED_STAGES)
    root = ElementTree.fromstring(drawn)
    assert {each.tag.removeprefix(SVG) for each in root.iter()} == {"svg", "title", "style", "rect", "path", "text"}
    assert not re.search("[\0-\x08\x0b-\x1f\u202e]", drawn)
    assert any("<script>" in words for words in _texts(drawn))


def test_a_picture_is_bounded() -> None:
    """The picture draws a bounded number of endpoints and places, and says how many are left out."""
    ports = [f"p{number}:{number}" for number in range(80, 80 + MOST_PLACES + 3)]
    many = [f"10.1.1.{number}@node-b" for number in range(1, 100)]
    seen = pipeline(service("shop/web", ports=ports), slice_of("shop/web", many, ports=["p80:80"]))
    words = _texts(svg(explain(seen, Question(parse_to("svc/shop/web"), Source())), TEMPLATE, ADDED_STAGES))
    assert "3 more places are in the text" in words
    assert f"and {99 - MOST_ENDPOINTS} more" in words


def test_a_packet_has_no_card_beyond_its_last_stage() -> None:
    """A packet outside the source ranges is dropped at the guard, and no card is drawn beyond the guard."""
    seen = example_pipeline("source-ranges")
    made = picture(explain(seen, Question(parse_to("203.0.113.9:443"), parse_source("192.0.2.1"))), ADDED_STAGES)
    words = [text.words for text in made.texts]
    assert "chain guard" in words
    assert "chain services" not in words
    assert words[-1] == "dropped"


@pytest.mark.parametrize(
    ("tweaks", "hooks"),
    [
        ({}, ["prerouting, output -90", "forward, input 0; output -90"]),
        ({"service_proxy_name": "canary"}, ["prerouting, output -90", "forward, input -1; output -90"]),
    ],
)
def test_stages_have_the_priorities_of_the_rules(tweaks: dict[str, Any], hooks: list[str]) -> None:
    """Each stage names its hooks with the priorities of the base chains, also for a canary's filters."""
    made = picture(
        explain(pipeline(service(), slice_of(), **tweaks), Question(parse_to("10.96.0.10:80"))), ADDED_STAGES
    )
    words = [text.words for text in made.texts]
    assert [each for each in words if each.startswith(("prerouting, output -9", "forward"))] == hooks
    assert [words.count(each) for each in ("prerouting, output -101", "postrouting 100")] == [2, 1]


def test_light_and_dark_have_the_same_classes() -> None:
    """Every class with its own colour in the light theme has a colour in the dark theme."""
    day, night = TEMPLATE.split("@media (prefers-color-scheme: dark)")
    coloured = {
        name
        for rule in re.findall(r"^ +(\..*?) \{.*(?:fill|stroke): #", day, re.MULTILINE)
        for name in rule.split(", ")
    }
    assert coloured
    assert coloured <= {name for rule in re.findall(r"^ +(\..*?) \{", night, re.MULTILINE) for name in rule.split(", ")}


def test_the_picture_in_the_docs_is_what_is_drawn() -> None:
    """docs/explain.svg is the picture of the README's example."""
    where = CHECKOUT / "examples" / "cluster-ip"
    options = ("--config", where / "config.yaml", "--node", "node-a", "--svg")
    drawn = nftproxy("explain", "10.96.0.10:80", where / "manifests", *options)
    assert (CHECKOUT / "docs" / "explain.svg").read_text() == drawn.out


@pytest.mark.parametrize("other", [["--trace"], ["--output", "json"]])
def test_a_picture_is_an_output_of_its_own(other: list[str]) -> None:
    """With --trace or JSON there is no picture, and the error says so."""
    where = CHECKOUT / "examples" / "cluster-ip" / "manifests"
    done = nftproxy("explain", "10.96.0.10:80", where, "--node", "node-a", "--svg", *other)
    assert (done.status, done.out) == (2, "")
    assert "--svg is an output of its own" in done.err
