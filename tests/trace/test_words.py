"""Every chain and every rule of the templates has words, and no words are of what the templates don't have."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from nftproxy.kernel.capabilities import probe
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.netns import in_scratch_namespace
from nftproxy.model.addresses import Family
from nftproxy.model.settings import DetectLocalMode
from nftproxy.rules.ruleset import Kind
from nftproxy.rules.transaction import Transaction
from nftproxy.templates_dir import templates_dir
from nftproxy.trace.scene import printed_rules
from nftproxy.trace.words import CHAINS, of_chain
from tests.support.examples import EXAMPLES, example_pipeline

Rules = frozenset[tuple[str, str]]
"""Chains and their rules."""

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
                        if declaration.kind is Kind.CHAIN:
                            yield from ((declaration.name, rule) for rule in declaration.body)


@pytest.fixture(scope="module")
def rendered() -> Rules:
    """Every rule that the examples render to, with the configurations that change rules."""
    return frozenset((chain, rule) for chain, rule in _rendered() if not rule.startswith(("type ", "#")))


def test_every_rule_has_words(rendered: Rules) -> None:
    """Whatever rule of the templates matches, a trace says in words what it does."""
    speechless = [(name, rule) for name, rule in rendered if not (found := of_chain(name)) or not found.rule(rule)]
    assert speechless == []


def test_every_chain_in_the_templates_is_among_those_that_the_examples_render(rendered: Rules) -> None:
    """No chain of a template stays without words because no example has it."""
    for template in templates_dir().glob("*.j2"):
        for chain in re.findall(r"^  chain (.*) \{$", template.read_text(), re.MULTILINE):
            pattern = re.sub(r"\\\{\\\{.*?\\\}\\\}", "[a-z0-9-]*", re.escape(chain))
            assert any(re.fullmatch(pattern, name) for name, _ in rendered), chain


def test_no_words_are_of_what_is_not_there(rendered: Rules) -> None:
    """Every entry of the table of words is used by some rule, and by the first that fits."""
    used = set()
    for name, rule in rendered:
        pattern = next(pattern for pattern in CHAINS if re.fullmatch(pattern, name))
        used.add((pattern, next(sign for sign, _ in CHAINS[pattern].rules if re.search(sign, rule))))
    table = {(pattern, sign) for pattern, words in CHAINS.items() for sign, _ in words.rules}
    shared = {(pattern, sign) for pattern, sign in table if pattern.startswith("filter-")}
    assert table - shared - used == set()


def _printed(text: str) -> dict[Family, dict[int, str]]:
    Kernel().apply(Transaction(text))
    return printed_rules()


@pytest.mark.parametrize("example", ["everything", "session-affinity"])
def test_what_nft_prints_has_the_same_words(example: str) -> None:
    """The words of a rule don't depend on whether it is as the template wrote it or as nft prints it."""
    pipeline = example_pipeline(example, wide_maps=probe().capabilities.wide_maps)
    printed = in_scratch_namespace(_printed, pipeline.full_transaction({}).text)
    for family, generation in pipeline.generations.items():
        chains = [each for each in generation.declarations.values() if each.kind is Kind.CHAIN]
        written = [(each.name, rule) for each in chains for rule in each.body if not rule.startswith("type ")]
        rules = [rule for _, rule in sorted(printed[family].items())]
        assert len(rules) == len(written)
        for (name, rule), again in zip(written, rules, strict=True):
            found = of_chain(name)
            assert found
            assert found.rule(again) == found.rule(rule), again
