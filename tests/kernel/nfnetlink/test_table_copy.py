"""A table that is copied from a network namespace to another is the same there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from nftproxy_conformance.lab import Namespace, obstacle

from nftproxy.kernel.capabilities import probe
from nftproxy.kernel.nfnetlink import nft_queries, table_copy
from nftproxy.kernel.nfnetlink.table_copy import Hook, hooks, read_other_tables, read_table, write_table
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import Unavailable
from tests.kernel.ruleset import execute, listing
from tests.support.examples import example_pipeline
from tests.support.factories import IPV4, IPV6
from tests.support.waiting import wait_until

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
"""Statements that our templates lack, but other programs' tables may have."""


@pytest.fixture
def here() -> Iterator[Namespace]:
    """The namespace of the table that is copied."""
    with Namespace("here") as made:
        yield made


@pytest.fixture
def there() -> Iterator[Namespace]:
    """The namespace of the copy."""
    with Namespace("there") as made:
        yield made


DORMANT = FOREIGN.replace("comment", "flags dormant; comment", 1)
TARGET = "10.0.0.1"
MANY = ", ".join(f"10.0.{number >> 8}.{number & 255} : {TARGET}" for number in range(5_000))
LARGE = f"table ip nftproxy {{ map m {{ typeof ip daddr : ip daddr; elements = {{ {MANY} }}; }}; }}"
"""A map that takes many messages."""


@pytest.mark.parametrize("text", ["", FOREIGN, DORMANT, LARGE], ids=["ours", "foreign", "dormant", "many elements"])
def test_a_copy_is_the_same(text: str, here: Namespace, there: Namespace) -> None:
    """A copied table lists as the original does: all elements, rules, policies and comments."""
    ours = example_pipeline("everything", wide_maps=probe().capabilities.wide_maps)
    here.call(execute, text or ours.full_transaction({}).text)
    await_all(here, text)
    copy = here.call(read_table, IPV4)
    assert copy
    there.call(write_table, copy)
    await_all(there, text)
    assert there.call(listing) == here.call(listing)


def await_all(place: Namespace, text: str) -> None:
    """Wait until all elements are listed: while the kernel resizes a set that has grown, a listing may lack some."""
    number = text.count(f": {TARGET}")
    wait_until(lambda: place.call(listing).count(f": {TARGET}") >= number, lambda: f"fewer than {number} elements")


OF_IPTABLES = """*filter
:FORWARD DROP [0:0]
-A FORWARD -p icmp --icmp-type echo-request -j ACCEPT
-A FORWARD -p tcp -m multiport --dports 80,443 -j REJECT --reject-with tcp-reset
-A FORWARD -p udp -m multiport ! --dports 53 -m limit --limit 3/min -j LOG --log-prefix "no "
-A FORWARD ! -p tcp -m addrtype --dst-type LOCAL -j ACCEPT
COMMIT
"""
"""Rules whose matches and targets belong to a protocol."""


def test_a_copy_of_iptables_rules(here: Namespace, there: Namespace) -> None:
    """A table of iptables-nft lists as the original does, with matches that the kernel takes for a protocol only."""
    here.run(["iptables-nft-restore"], OF_IPTABLES)
    (copy,) = here.call(read_other_tables, (TABLE,))
    there.call(write_table, copy)
    saved = [line for line in here.run(["iptables-nft-save"]).splitlines() if not line.startswith("#")]
    assert [line for line in there.run(["iptables-nft-save"]).splitlines() if not line.startswith("#")] == saved
    assert len(saved) == len(OF_IPTABLES.splitlines()) + 2


def test_no_table_is_no_copy(here: Namespace) -> None:
    """Where our table isn't there, there is nothing to copy."""
    assert here.call(read_table, IPV6) is None


def test_a_table_that_goes_while_it_is_read_is_no_copy(here: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is deleted between two requests is read again, and then doesn't exist."""
    real = nft_queries.table_comment

    def and_then_it_goes(family: Family, table: str) -> str | None:
        comment = real(family, table)
        if comment is not None:
            execute("delete table ip nftproxy")
        return comment

    here.call(execute, FOREIGN)
    monkeypatch.setattr(table_copy, "table_comment", and_then_it_goes)
    assert here.call(read_table, IPV4) is None


def test_a_refusal_is_reported(here: Namespace) -> None:
    """An error names the table that the kernel refuses, as for a chain with another priority."""
    here.call(execute, FOREIGN)
    copy = here.call(read_table, IPV4)
    assert copy
    other = FOREIGN.replace("priority 5", "priority 6")
    here.call(execute, "delete table ip nftproxy", other)
    with pytest.raises(Unavailable, match=r"^a copy of the table ip nftproxy can't be made: "):
        here.call(write_table, copy)


def test_hooks_are_those_of_the_base_chains(here: Namespace) -> None:
    """Each base chain has its hook and priority, and other chains have none."""
    here.call(execute, example_pipeline("cluster-ip").full_transaction({}).text)
    found = here.call(hooks, IPV4)
    assert found["nat-prerouting"] == Hook("prerouting", -101)
    assert found["nat-postrouting"] == Hook("postrouting", 100)
    assert "services" not in found
    assert len(found) == 7
