"""Two versions of nft take turns with one table: this machine's, and those of other Debians in their trees (debian.sh).

A node's image may be updated or rolled back at any time.  So whichever version finds a table that the other one wrote
must read it, load it anew and change it, and no client may notice.  Each turn is a process of its own, as in life.
"""

import sys
from collections.abc import Iterator
from itertools import islice, permutations
from pathlib import Path

import pytest

from nftproxy.kernel.libnftables import Kernel
from nftproxy.lab import Lab, Origin, Outcome, obstacle
from nftproxy.model.addresses import Family
from nftproxy.model.events import Event, Put
from nftproxy.pipeline import Pipeline
from tests.support.factories import leads_to_a_chain
from tests.support.town import STICKY_VIPS, endpoints, everywhere, goes_right, town
from tests.system.packets.cluster import IP, IP6

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPT = CHECKOUT / "tools" / "debian" / "debian.sh"
RELEASES = ("trixie", "sid")
CODE = "from tests.system.test_versions import take_turn; take_turn()"
COMMANDS = {
    "here": ["env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-c", CODE],
    **{release: [str(SCRIPT), release, "python", "-c", CODE] for release in RELEASES},
}


def is_prepared(release: str) -> bool:
    """Whether the tree of a release is there, and of late."""
    stamp = CHECKOUT / ".trees" / release / "venv" / ".nftproxy-setup"
    return stamp.exists() and stamp.stat().st_mtime > (CHECKOUT / "pyproject.toml").stat().st_mtime


pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


def take_turn() -> None:
    """Be one version: see what is there, load it anew, change it, and print the version."""
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
        kernel.apply(made.apply(events))
        assert all(holds(kernel, made, family) for family in Family)
    print(kernel.version())  # noqa: T201 -- the answer to the process that started this one


def holds(kernel: Kernel, made: Pipeline, family: Family) -> bool:
    """Whether the kernel has the sets, maps, chains and elements that the pipeline has, as this version reads them.

    Beyond these it may have chains for numbers of endpoints, and what leads there: they are kept once they were needed.
    """
    installed, generation = kernel.read_back(family), made.generations[family]
    assert installed is not None
    found = {(container.kind, container.name) for container in installed.containers}
    held, wanted = kernel.elements(family), frozenset(generation.elements())
    kept = all(leads_to_a_chain(each) for each in held - wanted)
    return found >= generation.declarations.keys() and held >= wanted and kept


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A lab of its own."""
    with Lab() as lab:
        yield lab


@pytest.mark.parametrize("pair", list(permutations(COMMANDS, 2)), ids=", then ".join)
def test_versions_take_turns_with_a_table(lab: Lab, pair: tuple[str, str]) -> None:
    """Each version reads, loads anew and changes what the other one left, and connections go where they should."""
    for release in set(pair) - {"here"}:
        if not is_prepared(release):
            pytest.skip(f"no tree of Debian {release} here, or none of late: run tools/debian/debian.sh {release}")
    homes: set[Outcome] = set()
    for where in pair * 2:
        version = lab.node.run(COMMANDS[where]).strip()
        print(f"{where}: nft {version}")  # noqa: T201 -- for whoever reads the test's output
        outcomes = lab.connect_many(islice(everywhere(), 300))
        assert [outcome for outcome in outcomes if not goes_right(outcome)] == []
        homes.add(lab.connect(Origin.POD, STICKY_VIPS[0], 80))
    assert len(homes) == 1  # affinity outlives each turn
