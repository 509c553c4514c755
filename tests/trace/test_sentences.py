"""Every rule of the templates has a comment, which a trace shows, and so does nft."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from nftproxy.extensions.fast_path.rules import TEMPLATE as FAST_PATH_TEMPLATE
from nftproxy.kernel.capabilities import probe
from nftproxy.kernel.child_process import in_scratch_namespace
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.nfnetlink.nftrace import TraceMessage, TraceType, TraceVerdict
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.settings import DetectLocalMode
from nftproxy.rules.ruleset import NftKind
from nftproxy.rules.transaction import Transaction
from nftproxy.templates_dir import templates_dir
from nftproxy.trace.scene import printed_rules
from nftproxy.trace.sentences import ENDS, RuleBook, steps
from tests.support.examples import EXAMPLES, example_pipeline

Rules = frozenset[tuple[str, str]]
"""Chains and their rules."""

LONGEST = 128
"""Bytes of a comment that nft takes: NFTNL_UDATA_COMMENT_MAXLEN."""

VARIANTS: tuple[dict[str, object], ...] = (
    {},
    {"masquerade_all": True, "masquerade_fully_random": True},
    {"detect_local_mode": DetectLocalMode.INTERFACE_NAME_PREFIX, "interface_name_prefix": "veth"},
    {"service_counts": True},
)


def _rendered() -> Iterator[tuple[str, str]]:
    for name in EXAMPLES:
        for variant in VARIANTS if name == "everything" else VARIANTS[:1]:
            for wide_maps in (False, True):
                for generation in example_pipeline(name, wide_maps=wide_maps, **variant).generations.values():
                    for declaration in generation.declarations.values():
                        if declaration.kind is NftKind.CHAIN:
                            yield from ((declaration.name, rule) for rule in declaration.body)


@pytest.fixture(scope="module")
def rendered() -> Rules:
    """Every rule that the examples render to, with the configurations that change rules."""
    return frozenset((chain, rule) for chain, rule in _rendered() if not rule.startswith("type "))


def comment_of(rule: str) -> str:
    """The comment at the end of a rule, or ""."""
    found = re.fullmatch(r'.* comment "([^"]+)"', rule)
    return found[1] if found else ""


def test_every_rule_has_a_comment(rendered: Rules) -> None:
    """Every rule of the templates has a sentence, which nft can hold as a comment."""
    assert [row for row in rendered if not 0 < len(comment_of(row[1]).encode()) <= LONGEST] == []


def test_every_chain_in_the_templates_is_among_those_that_the_examples_render(rendered: Rules) -> None:
    """No rule of a template stays without a comment because no example has it.

    The table of the fast path is apart: kernels without flowtables can't load an example of it, and no packet is traced
    through it.
    """
    for template in templates_dir().rglob("*.j2"):
        if FAST_PATH_TEMPLATE.endswith(template.name):
            continue
        for chain in re.findall(r"^  chain (.*) \{$", template.read_text(), re.MULTILINE):
            pattern = re.sub(r"\\\{\\\{.*?\\\}\\\}", "[a-z0-9-]*", re.escape(chain))
            assert any(re.fullmatch(pattern, name) for name, _ in rendered), chain


def test_every_end_that_has_words_is_of_a_chain(rendered: Rules) -> None:
    """Sentences about the ends of chains are about chains that the templates have, and about each at most once."""
    chains = {name for name, _ in rendered}
    spoken = [{name for name in chains if re.fullmatch(pattern, name)} for pattern in ENDS]
    assert all(spoken)
    assert sum(map(len, spoken)) == len(set.union(*spoken))


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        ("rate-100-200", "no more than 100 new connections per second, or 200 in a row"),
        ("connections-500", "no more than 500 connections of this client"),
    ],
)
def test_a_sentence_has_the_figures_of_its_chain(chain: str, words: str) -> None:
    """The sentence about the end of a limit's chain names the limit."""
    end = TraceMessage(Family.IPV4, TABLE, chain, TraceType.RETURN, 0, TraceVerdict.RETURN, "")
    (step,) = steps([end], RuleBook({family: {} for family in Family}, {family: {} for family in Family}), ())
    assert step.words == words


def _printed(text: str) -> dict[Family, dict[int, str]]:
    Kernel().apply(Transaction(text))
    return printed_rules()


@pytest.mark.parametrize("example", ["everything", "session-affinity"])
def test_nft_prints_the_comments(example: str) -> None:
    """The rules that nft lists have the comments that the templates gave them."""
    pipeline = example_pipeline(example, wide_maps=probe().capabilities.wide_maps)
    printed = in_scratch_namespace(_printed, pipeline.full_transaction({}).text)
    for family, generation in pipeline.generations.items():
        chains = [each for each in generation.declarations.values() if each.kind is NftKind.CHAIN]
        written = [comment_of(rule) for each in chains for rule in each.body if not rule.startswith("type ")]
        assert [comment_of(rule) for _, rule in sorted(printed[family].items())] == written
