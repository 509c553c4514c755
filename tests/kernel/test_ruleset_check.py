"""Loading a ruleset where it does no harm."""

from __future__ import annotations

import pytest

from nftproxy.kernel.capabilities import WIDE_MAPS, probe
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.ruleset_check import CheckResult, check_ruleset, pieces
from nftproxy.model.addresses import Family
from tests.conftest import Run

pytestmark = pytest.mark.usefixtures("namespace")


def rendered(*elements: str) -> str:
    """A ruleset as `render` writes it."""
    lines = "".join(f"      {element},  # shop/web\n" for element in elements)
    return (
        '# nftproxy: rules for node a\n\ntable ip nftproxy {\n  comment "nftproxy"\n\n'
        "  set cluster-ips {\n    type ipv4_addr\n    elements = {\n      10.96.0.10,  # shop/web\n    }\n  }\n\n"
        "  map services {\n    type ipv4_addr . inet_proto . inet_service : verdict\n"
        f"    elements = {{\n{lines}    }}\n  }}\n\n"
        "  chain refuse {\n    reject\n  }\n}\n"
        "\ntable ip6 nftproxy {\n  chain c {\n  }\n}\n"
    )


def check_many() -> str:
    """Check a ruleset of 20,000 elements, and return the result."""
    elements = [f"10.{i >> 8}.{i & 255}.1 . tcp . 80 : goto refuse" for i in range(20_000)]
    result = check_ruleset(rendered(*elements))
    return f"{result.ok} {result.elements} {result.message}"


def test_a_good_ruleset_is_counted() -> None:
    """Loaded objects are counted over both families, with the versions and the time."""
    result = check_ruleset(rendered("10.96.0.10 . tcp . 80 : goto refuse", "10.96.0.11 . tcp . 80 : drop"))
    assert result.ok
    assert (result.message, result.statement) == ("", "")
    assert (result.sets, result.maps, result.chains, result.elements) == (1, 1, 2, 3)
    assert 0 < result.seconds < 60
    assert result.libnftables == Kernel().version()
    assert str(result).endswith(": 1 sets, 1 maps, 2 chains, 3 elements")


def test_nothing_is_loaded_here() -> None:
    """The caller's own namespace is left alone."""
    check_ruleset(rendered("10.96.0.10 . tcp . 80 : goto refuse"))
    assert all(Kernel().read_back(family) is None for family in Family)


def test_a_refused_ruleset_is_explained() -> None:
    """A refusal is reported with the kernel's words and the statement in its blocks."""
    result = check_ruleset(rendered("10.96.0.10 . tcp . 80 : drop", "10.96.0.11 . tcp . 80 : goto nowhere"))
    assert not result.ok
    assert result.message == "Could not process rule: No such file or directory"
    assert result.statement == (
        "table ip nftproxy { map services { elements = { 10.96.0.11 . tcp . 80 : goto nowhere,  # shop/web"
    )
    assert str(result).startswith(f"NFT413: refused by libnftables {Kernel().version()} on Linux ")


def test_a_ruleset_that_loads_only_once_is_refused() -> None:
    """Rules that load into an empty namespace and are refused the second time are reported as such."""
    result = check_ruleset("add table ip nftproxy\ncreate chain ip nftproxy refuse\n")
    assert not result.ok
    assert result.message == "loaded, but not a second time: Could not process rule: File exists"
    assert result.statement == "create chain ip nftproxy refuse"
    assert result.chains == 1


def test_a_ruleset_that_kills_the_library_is_told() -> None:
    """Text that libnftables dies of is a fault of the text for this machine, and costs us nothing."""
    if probe().capabilities.wide_maps:
        pytest.skip("this libnftables is not killed by wide maps")
    result = check_ruleset("".join(WIDE_MAPS))
    assert not result.ok
    assert "killed by SIGABRT" in result.message
    assert result.libnftables == Kernel().version()


@pytest.mark.slow
def test_users_can_check_too(as_nobody: Run) -> None:
    """Without root, a ruleset that is too large for a transaction is loaded in several."""
    assert as_nobody("from tests.kernel.test_ruleset_check import check_many as f; print(f())") == "True 20001 \n"


def test_a_ruleset_in_pieces() -> None:
    """The pieces are the ruleset without elements, then the elements of each set, some at a time."""
    text = rendered(*(f"10.96.{i >> 8}.{i & 255} . tcp . 80 : drop" for i in range(1001)))
    first, addresses, most, last = pieces(text)
    assert "elements" not in first
    assert [line for line in text.splitlines() if line in first.splitlines()] == first.splitlines()
    assert addresses == "add element ip nftproxy cluster-ips {\n      10.96.0.10,  # shop/web\n}\n"
    assert most.startswith("add element ip nftproxy services {\n      10.96.0.0 . tcp . 80 : drop,  # shop/web\n")
    assert most.count(" : drop") == 1000
    assert last == "add element ip nftproxy services {\n      10.96.3.232 . tcp . 80 : drop,  # shop/web\n}\n"


def test_results_compare_as_values() -> None:
    """A result is a value."""
    assert CheckResult(ok=False, message="x") == CheckResult(ok=False, message="x")
