"""A node that loads no module on demand, as hardened hosts do: what is said names the module and how to load it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nftproxy.kernel.capabilities import missing_features
from nftproxy.kernel.conntrack.connection_counts import active_connections
from nftproxy.model.errors import Unavailable
from tests.system.machine.conftest import load_module, require_own_machine

NETFILTER = ("nf_", "nft_", "nfnetlink")
EXPRESSIONS = ("nft_chain_nat", "nft_nat", "nft_masq", "nft_numgen", "nft_ct", "nft_fib_ipv4", "nft_reject_ipv6")


@pytest.fixture
def missing(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a module that isn't loaded, and that this machine doesn't load."""
    name: str = request.param
    require_own_machine()
    load_module(name)
    blocked = Path("/etc/modprobe.d/blocked.conf")
    blocked.write_text(f"install {name} /bin/false\n")
    while any(_is_removed(each) for each in _loaded()):
        pass  # a module goes after those that use it
    assert name not in _loaded()
    yield name
    blocked.unlink()


def _loaded() -> list[str]:
    names = [line.partition(" ")[0] for line in Path("/proc/modules").read_text().splitlines()]
    return [name for name in names if name.startswith(NETFILTER)]


def _is_removed(name: str) -> bool:
    return subprocess.run(["modprobe", "--remove", name], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("missing", EXPRESSIONS, indirect=True)
def test_a_module_of_rules_is_named(missing: str) -> None:
    """Each feature that the kernel lacks without a module comes with the command that loads it."""
    found = missing_features()
    assert found
    assert all(missing in each.partition("modprobe ")[2].partition("`")[0].split() for each in found)


@pytest.mark.parametrize("missing", ["nf_tables"], indirect=True)
def test_nftables_is_named(missing: str) -> None:
    """Without nftables no feature can be tried, and the error names the module."""
    with pytest.raises(Unavailable, match=f"run `modprobe {missing}` on the node"):
        missing_features()


@pytest.mark.parametrize("missing", ["nf_conntrack_netlink"], indirect=True)
def test_the_listing_of_connections_is_named(missing: str) -> None:
    """Without the module by which conntrack is listed, the error names it."""
    with pytest.raises(Unavailable, match=f"run `modprobe {missing}` on the node"):
        active_connections()
