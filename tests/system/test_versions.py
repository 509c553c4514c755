"""Two versions of nft take turns with a table: this machine's, or a version in another Debian's tree (debian.sh).

A node's image may be updated or rolled back at any time.  So each version must read a table that the other version
wrote, load it anew and change it, and no client may notice.  Each turn is a separate process, as on a real node.
"""

import sys
from collections.abc import Iterator
from itertools import islice, permutations
from pathlib import Path

import pytest
from nftproxy_conformance.lab import Lab, Origin, Outcome, obstacle

from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family
from nftproxy.model.events import Event, Put
from nftproxy.pipeline import Pipeline
from tests.support.cluster import IP, IP6
from tests.support.factories import leads_to_a_chain
from tests.support.town import STICKY_VIPS, endpoints, everywhere, goes_right, town

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPT = CHECKOUT / "tools" / "debian" / "debian.sh"
RELEASES = ("trixie", "sid")
CODE = "from tests.system.test_versions import take_turn; take_turn()"
COMMANDS = {
    "here": ["env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-c", CODE],
    **{release: [str(SCRIPT), release, "python", "-c", CODE] for release in RELEASES},
}


def is_prepared(release: str) -> bool:
    """Return whether the tree of a release exists and is up to date."""
    stamp = CHECKOUT / ".trees" / release / "venv" / ".nftproxy-setup"
    return stamp.exists() and stamp.stat().st_mtime > (CHECKOUT / "pyproject.toml").stat().st_mtime


pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


def take_turn() -> None:
    """Read the present table, load it anew, change it, and print the version of nft."""
    kernel = Kernel()
    made = town()
    installed = {family: kernel.read_back(family) for family in Family}
    if installed[Family.IPV4]:  # IPv6 affinity depends on the version
        assert holds(kernel, made, Family.IPV4)
    kernel.apply(made.full_transaction(installed))
    changes: list[list[Event]] = [
        [Put(endpoints([IP.away])), Put(endpoints([IP6.here], ip=IP6))],
        [Put(endpoints([IP.here, IP.away])), Put(endpoints([IP6.here, IP6.away], ip=IP6))],
    ]
    for events in changes:
        kernel.apply(made.ingest(events))
        assert all(holds(kernel, made, family) for family in Family)
    print(kernel.version())  # noqa: T201 -- the answer to the parent process


def holds(kernel: Kernel, made: Pipeline, family: Family) -> bool:
    """Return whether the kernel has the pipeline's sets, maps, chains and elements, as this version reads them.

    The kernel may also have chains for past numbers of endpoints, and the elements that lead there, as these are kept.
    """
    installed, generation = kernel.read_back(family), made.generations[family]
    assert installed is not None
    found = {(container.kind, container.name) for container in installed.containers}
    held, wanted = kernel.elements(family), frozenset(generation.elements())
    kept = all(leads_to_a_chain(each) for each in held - wanted)
    return found >= generation.declarations.keys() and held >= wanted and kept


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A lab for a single test."""
    with Lab() as lab:
        yield lab


@pytest.mark.parametrize("pair", list(permutations(COMMANDS, 2)), ids=", then ".join)
def test_versions_take_turns_with_a_table(lab: Lab, pair: tuple[str, str]) -> None:
    """Each version reads, reloads and changes the other version's table, and connections keep their right outcomes."""
    for release in set(pair) - {"here"}:
        if not is_prepared(release):
            pytest.skip(f"no tree of Debian {release} here, or none of late: run tools/debian/debian.sh {release}")
    homes: set[Outcome] = set()
    for where in pair * 2:
        version = lab.node.run(COMMANDS[where]).strip()
        print(f"{where}: nft {version}")  # noqa: T201 -- for readers of the test's output
        outcomes = lab.connect_many(islice(everywhere(), 300))
        assert [outcome for outcome in outcomes if not goes_right(outcome)] == []
        homes.add(lab.connect(Origin.POD, STICKY_VIPS[0], 80))
    assert len(homes) == 1  # affinity outlives each turn
