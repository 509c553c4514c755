"""Elements that are looked up by key: every existing element, and missing elements."""

from __future__ import annotations

import pytest
from msgspec import structs

from nftproxy.kernel.nfnetlink import elements, nft_queries
from nftproxy.kernel.nfnetlink.elements import ElementLookup, elements_in_force
from nftproxy.model.errors import Unavailable
from tests.kernel.ruleset import execute
from tests.support.examples import EXAMPLES, example_pipeline
from tests.support.factories import IPV4
from tests.support.selection import every

pytestmark = pytest.mark.usefixtures("namespace")


@pytest.mark.parametrize("example", every(3, EXAMPLES))
def test_every_element_is_found(example: str) -> None:
    """Each element of an example's rules is found by its key, with its value.  A missing key finds none."""
    made = example_pipeline(example)
    execute(made.full_transaction({}).text)
    with ElementLookup() as kernel:
        for family, generation in made.generations.items():
            given = list(generation.elements())
            found = [kernel.find(family, each.container, each.key) for each in given]
            assert found == [(each.value, None) for each in given]
            for each in given:
                if each.container == "fronts":
                    is_held = generation.value("no-endpoints", each.key) is not None
                    assert (kernel.find(family, "no-endpoints", each.key) is not None) is is_held


def found(*keys: str) -> list[str]:
    """Return the keys that the set `s` has."""
    with ElementLookup() as kernel:
        return [key for key in keys if kernel.find(IPV4, "s", key)]


def declare(body: str, *elements: str) -> None:
    """Make the set `s`."""
    execute(f"table ip nftproxy {{ set s {{ {body}; }}; }}")
    execute(*(f"add element ip nftproxy s {{ {each} }}" for each in elements))


def test_a_range_is_not_a_part_of_another() -> None:
    """A lookup of a range finds neither a wider range around it nor an address within."""
    whole = "10.0.0.1 . 192.0.2.0/24"
    declare("typeof ip daddr . ip saddr; flags interval", whole)
    assert found(whole, "10.0.0.1 . 192.0.2.0/25", "10.0.0.1 . 192.0.2.7", "10.0.0.2 . 192.0.2.0/24") == [whole]


@pytest.mark.parametrize("held", ["192.0.2.0/24", "192.0.2.0", "192.0.2.0/25"])
def test_a_range_of_single_addresses_is_not_a_part_of_another(held: str) -> None:
    """The same if the range is the whole key, which the kernel stores differently, up to the last address."""
    declare("typeof ip daddr; flags interval", held, "224.0.0.0/3")
    assert found("192.0.2.0", "192.0.2.0/24", "192.0.2.0/25", "192.0.2.128/25", "0.0.0.0/0") == [held]
    assert found("224.0.0.0/3", "224.0.0.0/4") == ["224.0.0.0/3"]


def test_elements_with_a_timeout_have_their_seconds_left() -> None:
    """An element with a timeout is found with the seconds that are left of it."""
    declare("typeof ip daddr; flags timeout; timeout 1h", "10.0.0.1")
    with ElementLookup() as kernel:
        (value, seconds) = kernel.find(IPV4, "s", "10.0.0.1") or ("", None)
    assert value == ""
    assert seconds is not None
    assert 3000 < seconds <= 3600


def test_where_there_is_no_table_nothing_is_found() -> None:
    """Without a table, or without the set, there is no element and no error."""
    assert found("10.96.0.10 . tcp . 80") == []
    execute("add table ip nftproxy")
    assert found("10.96.0.10 . tcp . 80") == []


@pytest.mark.parametrize("declared", ["typeof ether saddr", "typeof ip daddr . ip saddr"])
def test_keys_of_other_types_are_named(declared: str) -> None:
    """A set with keys of other types can't be asked, and the error says so."""
    declare(declared)
    with pytest.raises(Unavailable, match=r"type \d+ are unknown|keys have 2"):
        found("10.0.0.1")


@pytest.mark.parametrize("is_counted", [True, False], ids=["counted", "not counted"])
def test_elements_in_force_are_counted(monkeypatch: pytest.MonkeyPatch, is_counted: bool) -> None:
    """Elements count once the table has hooks, on kernels that count them and on others."""
    if not is_counted:
        plain = nft_queries.sets
        monkeypatch.setattr(
            elements, "sets", lambda family: [structs.replace(each, count=None) for each in plain(family)]
        )
    assert elements_in_force(IPV4, 100) is None, "no table"
    declare("typeof ip daddr", "192.0.2.1", "192.0.2.2", "192.0.2.3")
    assert elements_in_force(IPV4, 100) is None, "no packet passes it"
    execute("add chain ip nftproxy c { type filter hook input priority 0; }")
    assert elements_in_force(IPV4, 100) == 3
