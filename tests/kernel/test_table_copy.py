"""A table that is copied from one network namespace to another is the same there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nftproxy.kernel import nftables_netlink
from nftproxy.kernel.capabilities import probe
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.table_copy import Hook, hooks, read_table, write_table
from nftproxy.lab import Namespace, obstacle
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable
from nftproxy.rules.transaction import Transaction
from tests.support.examples import example_pipeline

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())

FOREIGN = """
table ip nftproxy {
  comment "nftproxy shape"
  chain input {
    type filter hook input priority 5; policy drop;
    tcp dport { 22, 80 } counter accept comment "an anonymous set"
    ip saddr vmap { 10.0.0.0/8 : accept, 192.0.2.1 : drop }
    limit rate 5/second log prefix "x"
  }
}
"""
"""What our templates don't have, but somebody else's may."""


@pytest.fixture
def here() -> Iterator[Namespace]:
    """Where the table is that is copied."""
    with Namespace("here") as made:
        yield made


@pytest.fixture
def there() -> Iterator[Namespace]:
    """Where it is copied to."""
    with Namespace("there") as made:
        yield made


def _copied(text: str, here: Namespace, there: Namespace) -> tuple[str, str]:
    """What a table lists as, and what its copy does."""
    here.call(Kernel().apply, Transaction(text))
    copy = here.call(read_table, Family.IPV4)
    assert copy
    there.call(write_table, copy)
    return here.call(Kernel().listing, Family.IPV4), there.call(Kernel().listing, Family.IPV4)


@pytest.mark.parametrize("text", [None, FOREIGN], ids=["ours", "foreign"])
def test_a_copy_is_the_same(text: str | None, here: Namespace, there: Namespace) -> None:
    """A copied table lists as the original does: elements, rules, policies and comments."""
    ours = example_pipeline("everything", wide_maps=probe().capabilities.wide_maps).full_transaction({}).text
    listing, again = _copied(text or ours, here, there)
    assert again == listing


def test_many_elements_are_copied(here: Namespace, there: Namespace) -> None:
    """A map that takes many messages arrives whole."""
    elements = ", ".join(f"10.0.{n >> 8}.{n & 255} : 10.0.0.1" for n in range(5_000))
    text = f"table ip nftproxy {{\n map m {{\n typeof ip daddr : ip daddr\n elements = {{ {elements} }}\n }}\n }}\n"
    listing, again = _copied(text, here, there)
    assert again == listing


def test_no_table_is_no_copy(here: Namespace) -> None:
    """Where our table isn't there, there is nothing to copy."""
    assert here.call(read_table, Family.IPV6) is None


def test_a_table_that_goes_while_it_is_read_is_no_copy(here: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that somebody deletes between two questions is read again, and then isn't there."""
    real = nftables_netlink.table_comment

    def and_then_it_goes(family: Family, table: str) -> str | None:
        comment = real(family, table)
        if comment is not None:
            Kernel().apply(Transaction("delete table ip nftproxy\n"))
        return comment

    here.call(Kernel().apply, Transaction(FOREIGN))
    monkeypatch.setattr(nftables_netlink, "table_comment", and_then_it_goes)
    assert here.call(read_table, Family.IPV4) is None


def test_a_refusal_is_reported(here: Namespace) -> None:
    """What the kernel doesn't take, such as a chain whose priority is another already, names the table."""
    here.call(Kernel().apply, Transaction(FOREIGN))
    copy = here.call(read_table, Family.IPV4)
    assert copy
    other = FOREIGN.replace("priority 5", "priority 6")
    here.call(Kernel().apply, Transaction(f"delete table ip nftproxy\n{other}"))
    with pytest.raises(Unavailable, match=r"^a copy of the table ip nftproxy can't be made: "):
        here.call(write_table, copy)


def test_hooks_are_those_of_the_base_chains(here: Namespace) -> None:
    """Each base chain has its hook and priority, and other chains have none."""
    here.call(Kernel().apply, example_pipeline("cluster-ip").full_transaction({}))
    found = here.call(hooks, Family.IPV4)
    assert found["nat-prerouting"] == Hook("prerouting", -101)
    assert found["nat-postrouting"] == Hook("postrouting", 100)
    assert "services" not in found
    assert len(found) == 7
