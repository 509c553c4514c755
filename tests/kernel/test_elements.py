"""Elements that the kernel is asked for one by one: every one that there is, and those that there aren't."""

from __future__ import annotations

from pathlib import Path

import pytest

from nftproxy.kernel.elements import Elements
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable
from nftproxy.model.settings import Capabilities, Settings
from nftproxy.pipeline import Pipeline
from nftproxy.rules.transaction import Transaction
from nftproxy.sources.files import load, load_config
from tests.support.factories import renderer

pytestmark = pytest.mark.usefixtures("namespace")

EXAMPLES = sorted(path.parent for path in (Path(__file__).resolve().parents[2] / "examples").glob("*/manifests"))


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.name for path in EXAMPLES])
def test_every_element_is_found(example: Path) -> None:
    """Each element of an example's rules is found by its key, with its value; with another key there is none."""
    config, _ = load_config(example / "config.yaml")
    pipeline = Pipeline("node-a", Settings(config, Capabilities(wide_maps=False)), renderer())
    pipeline.apply(load([example / "manifests"]).listing())
    Kernel().apply(pipeline.full_transaction({}))
    with Elements() as kernel:
        for family, generation in pipeline.generations.items():
            elements = list(generation.elements())
            assert [kernel.find(family, each.container, each.key) for each in elements] == [
                (each.value, None) for each in elements
            ]
            others = [element for element in elements if element.container == "fronts"]
            assert [kernel.find(family, "no-endpoints", each.key) is None for each in others] == [
                generation.value("no-endpoints", each.key) is None for each in others
            ]


def test_a_range_is_not_a_part_of_another() -> None:
    """Who asks for a range is not answered with a wider one that holds it, nor with an address within."""
    Kernel().apply(Transaction("table ip nftproxy {\n set s {\n typeof ip daddr . ip saddr\n flags interval\n }\n}\n"))
    Kernel().apply(Transaction("add element ip nftproxy s { 10.0.0.1 . 192.0.2.0/24 }\n"))
    with Elements() as kernel:
        assert kernel.find(Family.IPV4, "s", "10.0.0.1 . 192.0.2.0/24")
        assert kernel.find(Family.IPV4, "s", "10.0.0.1 . 192.0.2.0/25") is None
        assert kernel.find(Family.IPV4, "s", "10.0.0.1 . 192.0.2.7") is None
        assert kernel.find(Family.IPV4, "s", "10.0.0.2 . 192.0.2.0/24") is None


@pytest.mark.parametrize("held", ["192.0.2.0/24", "192.0.2.0", "192.0.2.0/25"])
def test_a_range_of_single_addresses_is_not_a_part_of_another(held: str) -> None:
    """The same where the range is all of the key, which the kernel keeps in another way; up to the last address."""
    Kernel().apply(Transaction("table ip nftproxy {\n set s {\n typeof ip daddr\n flags interval\n }\n}\n"))
    Kernel().apply(
        Transaction(f"add element ip nftproxy s {{ {held} }}\nadd element ip nftproxy s {{ 224.0.0.0/3 }}\n")
    )
    with Elements() as kernel:
        asked = ["192.0.2.0", "192.0.2.0/24", "192.0.2.0/25", "192.0.2.128/25", "0.0.0.0/0"]
        assert [key for key in asked if kernel.find(Family.IPV4, "s", key)] == [held]
        assert kernel.find(Family.IPV4, "s", "224.0.0.0/3")
        assert kernel.find(Family.IPV4, "s", "224.0.0.0/4") is None


def test_what_expires_says_when() -> None:
    """An element with a timeout is found with the seconds that are left of it."""
    Kernel().apply(Transaction("table ip nftproxy {\n set s {\n typeof ip daddr\n flags timeout\n timeout 1h\n }\n}\n"))
    Kernel().apply(Transaction("add element ip nftproxy s { 10.0.0.1 }\n"))
    with Elements() as kernel:
        found = kernel.find(Family.IPV4, "s", "10.0.0.1")
    assert found is not None
    assert found.seconds is not None
    assert 3000 < found.seconds <= 3600


def test_where_there_is_no_table_nothing_is_found() -> None:
    """Without a table, or without the set, there is no element and no error."""
    with Elements() as kernel:
        assert kernel.find(Family.IPV4, "services", "10.96.0.10 . tcp . 80") is None
    Kernel().apply(Transaction("add table ip nftproxy\n"))
    with Elements() as kernel:
        assert kernel.find(Family.IPV4, "services", "10.96.0.10 . tcp . 80") is None


@pytest.mark.parametrize("declared", ["typeof ether saddr", "typeof ip daddr . ip saddr"])
def test_keys_of_other_types_are_named(declared: str) -> None:
    """A set whose keys are not what was asked for can't be asked, and the error says so."""
    Kernel().apply(Transaction(f"table ip nftproxy {{\n set s {{\n {declared}\n }}\n}}\n"))
    with Elements() as kernel, pytest.raises(Unavailable, match=r"type \d+ are not known here|keys have 2"):
        kernel.find(Family.IPV4, "s", "10.0.0.1")
