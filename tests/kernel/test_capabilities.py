"""Features that are found by trying, on this machine's libnftables and kernel."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nftproxy.kernel import capabilities, child_process
from nftproxy.kernel.capabilities import FEATURES, Feature, Probe, declare, missing_features, probe, refused_texts
from nftproxy.kernel.child_process import forked_ahead, in_scratch_namespace
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.model.settings import Capabilities
from tests.conftest import Run

pytestmark = pytest.mark.usefixtures("namespace")


@pytest.fixture(autouse=True)
def _nothing_cached() -> Iterator[None]:
    probe.cache_clear()
    yield
    probe.cache_clear()


@pytest.fixture
def without_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which Python finds no libnftables, in other processes too."""
    path = [part for part in sys.path if not (Path(part) / "nftables").is_dir()]
    monkeypatch.setattr(sys, "path", path)


def test_wide_maps_are_found_or_the_reason_is() -> None:
    """Wide maps crash nft 1.0.6, which costs only the probing process.  1.1.3 has them."""
    found = probe()
    if Kernel().version() == "1.0.6":
        assert found.capabilities == Capabilities(wide_maps=False)
        assert found.reason == "this libnftables dies of maps with keys wider than 16 bytes"
    else:
        assert found.capabilities.wide_maps == (found.reason == "")
    if Kernel().version() == "1.1.3":
        assert found.capabilities.wide_maps


def test_probing_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    """The output of a crashing library doesn't reach our own output."""
    probe()
    assert capfd.readouterr() == ("", "")


def test_probing_leaves_nothing_behind() -> None:
    """The namespace of the caller stays empty."""
    probe()
    missing_features()
    assert all(Kernel().read_back(family) is None for family in Family)
    assert "probe" not in Kernel()._ask("list ruleset", as_json=False)


def test_probing_once_is_enough() -> None:
    """The answer is found once per process."""
    assert probe() is probe()


@pytest.mark.usefixtures("without_binding")
def test_an_untested_feature_counts_as_missing() -> None:
    """Without the binding the feature counts as missing, and the reason names the package to install."""
    found = probe()
    assert found.capabilities == Capabilities(wide_maps=False)
    assert "install python3-nftables" in found.reason


def test_a_probe_that_takes_too_long_blames_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the probing process has no answer in time, the reason says so, and not that libnftables has died."""
    monkeypatch.setattr(child_process, "TIMEOUT", 0.0)
    found = probe()
    assert found.capabilities == Capabilities(wide_maps=False)
    assert found.reason == "no maps with keys wider than 16 bytes: no answer from a process in 0 s"


@pytest.mark.usefixtures("without_binding")
def test_features_that_can_t_be_tried_are_not_called_missing() -> None:
    """Without the binding nothing is known about the kernel, and the error says so."""
    with pytest.raises(Unavailable, match="install python3-nftables"):
        missing_features()


def test_this_kernel_lacks_nothing() -> None:
    """A kernel that the tests can run on has every feature that the rules need."""
    assert missing_features() == []


def test_texts_are_tried_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single dry run tells that nothing is refused.  If something is, each text is tried by itself."""
    tried = []

    def check(text: str) -> None:
        tried.append(text)
        if "bad" in text:
            raise Refused("No such file or directory", text)

    monkeypatch.setattr(capabilities, "check_text", check)
    assert refused_texts(["a", "b"]) == ["", ""]
    assert refused_texts(["a", "bad"]) == ["", "No such file or directory"]
    assert tried == ["ab", "abad", "a", "bad"]


def test_users_can_ask_too(as_nobody: Run) -> None:
    """Without root the answer is the same."""
    assert as_nobody("from nftproxy.kernel.capabilities import missing_features as f; print(f())") == "[]\n"


def test_a_missing_feature_is_named() -> None:
    """A feature is named for each family that lacks it, with where it comes from and the kernel's words."""
    features = (
        Feature("fun", "CONFIG_FUN", declare("chain c", "jump nowhere")),
        Feature("IPv4", "CONFIG_INET", declare("chain c", "$family daddr $address drop").replace("$address", "::1")),
        *FEATURES,
    )
    fun_ip, fun_ip6, ipv4 = missing_features(features)
    assert fun_ip == "fun for ip (CONFIG_FUN): Could not process rule: No such file or directory"
    assert fun_ip6 == "fun for ip6 (CONFIG_FUN): Could not process rule: No such file or directory"
    assert ipv4.startswith("IPv4 for ip (CONFIG_INET): ")


def test_where_no_namespace_can_be_made_the_answer_is_the_same() -> None:
    """In a container with CAP_NET_ADMIN alone dry runs in its own namespace tell the same, and leave nothing."""
    assert in_scratch_namespace(answers_without_namespaces) == (probe(), [], [None, None])


def answers_without_namespaces() -> tuple[Probe, list[str], list[object]]:
    """Return the answers of forks that may make no namespaces, and the tables that are there afterwards."""

    def refuse() -> None:
        raise Unavailable("can't make a network namespace")

    pytest.MonkeyPatch().setattr(child_process, "_enter_scratch_namespace", refuse)
    with forked_ahead(2):
        return probe(), missing_features(), [Kernel().read_back(family) for family in Family]
