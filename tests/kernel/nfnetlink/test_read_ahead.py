"""Sets that are read before they can be compared, against the real kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

import pytest

from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.nfnetlink import read_ahead
from nftproxy.kernel.nfnetlink.comparison import differences
from nftproxy.kernel.nfnetlink.elements import listings
from nftproxy.kernel.nfnetlink.read_ahead import ReadAhead
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import Unavailable
from nftproxy.pipeline import Pipeline
from nftproxy.rules.transaction import Difference
from tests.kernel.ruleset import execute
from tests.support.factories import IPV4, pipeline, service, slice_of

pytestmark = pytest.mark.usefixtures("namespace")

WEB = "10.96.0.1 . tcp . 80"


@pytest.fixture
def made() -> Pipeline:
    """Rules that the kernel has."""
    made = pipeline(service("shop/web", cluster_ips=["10.96.0.1"]), slice_of("shop/web", ["10.1.0.4"]), families=[IPV4])
    Kernel().apply(made.full_transaction({}))
    return made


def refuse(_family: Family, name: str) -> NoReturn:
    """A kernel that isn't to be asked."""
    raise Unavailable(f"{name} was asked for again")


def known(ahead: ReadAhead, made: Pipeline) -> dict[str, Difference]:
    """The differences that can be known."""
    return differences(made.generations[IPV4], ahead.listings)


def read(families: Iterable[Family] = Family) -> ReadAhead:
    """A cache of the present sets."""
    ahead = ReadAhead()
    ahead.read(families)
    return ahead


def test_the_cache_answers_until_the_next_commit(made: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the next commit, the kernel isn't asked again, and the cache gives the same answers."""
    wanted = known(ReadAhead(), made)
    ahead = read()
    monkeypatch.setattr(read_ahead, "listings", refuse)
    assert known(ahead, made) == wanted
    assert set(wanted.values()) == {Difference()}
    assert {"services", "fronts", "tcp-endpoints", "draws"} <= wanted.keys()
    assert known(ahead, made) == {}, "each set is kept until it was compared"


@pytest.mark.parametrize(
    "text",
    [
        f"delete element ip {TABLE} fronts {{ {WEB} }}\n",
        f"flush map ip {TABLE} services\n",
        f"delete table ip {TABLE}\n",
    ],
)
def test_a_foreign_commit_invalidates_the_cache(made: Pipeline, text: str) -> None:
    """The cache isn't used after another program's commit."""
    ahead = read()
    execute(f"{text}")
    assert known(ahead, made) == known(ReadAhead(), made)


def test_a_commit_while_it_is_read_is_seen(made: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another program commits while a set is being listed, the parts that were read are not used."""

    def disturbed(family: Family, name: str) -> Iterable[bytes]:
        yield from listings(family, name)
        if name == "fronts":
            execute(f"delete element ip {TABLE} fronts {{ {WEB} }}")

    monkeypatch.setattr(read_ahead, "listings", disturbed)
    ahead = read()
    monkeypatch.setattr(read_ahead, "listings", listings)
    assert [each.key for each in known(ahead, made)["fronts"].missing] == [WEB]


def test_only_so_much_is_read(made: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of any size is read and kept up to a limit, and the rest is asked for later."""
    wanted = known(ReadAhead(), made)
    asked = list[str]()

    def counted(family: Family, name: str) -> Iterable[bytes]:
        asked.append(name)
        return listings(family, name)

    monkeypatch.setattr(read_ahead, "MOST", 100)
    monkeypatch.setattr(read_ahead, "listings", counted)
    ahead = read()
    in_time = len(asked)
    assert known(ahead, made) == wanted
    assert 0 < in_time < len(wanted)
    assert len(asked) >= len(wanted) + 1, "that which was too much is asked for again"


def test_nothing_outlives_a_commit_of_ours(made: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache doesn't stay in memory if the table was replaced instead of compared."""
    kernel = Kernel()
    kernel.read_ahead(Family)
    kernel.apply(made.full_transaction({IPV4: kernel.read_back(IPV4)}))
    monkeypatch.setattr(read_ahead, "listings", refuse)
    installed = kernel.read_back(IPV4)
    assert installed
    assert kernel.compare(installed, made.generations[IPV4]).differences == {}


def test_without_a_table_nothing_is_read() -> None:
    """A node without rules of ours has nothing to read, and that is no fault."""
    assert list(read().listings(IPV4, "fronts")) == []
