"""The kernel settings that the configuration asks for, and how they are made."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from nftproxy.deploy.daemonset import NO_SYSCTLS, OOM_SCORE_ADJ
from nftproxy.kernel import sysctl
from nftproxy.kernel.nfnetlink.nft_queries import tables
from nftproxy.kernel.sysctl import apply, wanted
from nftproxy.model.settings import Config, Conntrack

NETFILTER = "/proc/sys/net/netfilter"
AGENT = 65532
"""The user of the agent in the printed DaemonSet."""
NOTHING = Conntrack(max_per_core=0, tcp_established_timeout=0, tcp_close_wait_timeout=0)


def asked(conntrack: Conntrack, cores: int = 2) -> dict[str, int]:
    """The settings of conntrack that are wanted, by their names alone."""
    found = wanted(Config(conntrack=conntrack), cores)
    del found["/proc/self/oom_score_adj"]
    return {path.rpartition("/")[2].removeprefix("nf_conntrack_"): value for path, value in found.items()}


def test_the_defaults_are_kube_proxys() -> None:
    """With nothing configured these settings are made, to the letter."""
    assert wanted(Config(), 8) == {
        f"{NETFILTER}/nf_conntrack_max": 262144,
        f"{NETFILTER}/nf_conntrack_buckets": 65536,
        f"{NETFILTER}/nf_conntrack_tcp_timeout_established": 86400,
        f"{NETFILTER}/nf_conntrack_tcp_timeout_close_wait": 3600,
        "/proc/self/oom_score_adj": -999,
    }


def test_a_canary_asks_for_no_sysctl() -> None:
    """A canary asks for no settings of the node."""
    assert wanted(Config(service_proxy_name="canary"), 8) == {"/proc/self/oom_score_adj": -999}


@pytest.mark.parametrize(
    ("per_core", "least", "cores", "most"),
    [(32768, 131072, 2, 131072), (32768, 131072, 4, 131072), (32768, 131072, 64, 2097152), (1000, 0, 3, 3000)],
)
def test_room_grows_with_the_cores(per_core: int, least: int, cores: int, most: int) -> None:
    """Connection tracking gets `maxPerCore` entries for each core, and at least `min`."""
    assert asked(Conntrack(max_per_core=per_core, min=least), cores)["max"] == most


def test_nothing_per_core_leaves_the_room_as_it_is() -> None:
    """No entries per core leaves the setting alone, with any minimum."""
    assert asked(NOTHING) == {}


@pytest.mark.parametrize(
    ("conntrack", "settings"),
    [
        ({"tcp_established_timeout": 7200.0}, {"tcp_timeout_established": 7200}),
        ({"tcp_close_wait_timeout": 60.9}, {"tcp_timeout_close_wait": 60}),
        ({"udp_timeout": 10.0}, {"udp_timeout": 10}),
        ({"udp_stream_timeout": 180.0}, {"udp_timeout_stream": 180}),
        ({"udp_timeout": 0.5}, {"udp_timeout": 1}),
        ({"tcp_be_liberal": True}, {"tcp_be_liberal": 1}),
        ({"tcp_be_liberal": False}, {}),
    ],
)
def test_only_what_is_configured_is_set(conntrack: dict[str, float], settings: dict[str, int]) -> None:
    """Each field sets its own setting, in whole seconds, at least 1."""
    fields = {"max_per_core": 0, "tcp_established_timeout": 0, "tcp_close_wait_timeout": 0} | conntrack
    assert asked(Conntrack(**fields)) == settings  # type: ignore[arg-type]


def test_settings_that_differ_are_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Settings that differ are written and logged.  Right settings are not touched."""
    same, other = tmp_path / "same", tmp_path / "other"
    same.write_text("60\n")
    same.chmod(0o444)
    other.write_text("-5\n")
    with caplog.at_level(logging.INFO):
        apply({str(same): 60, str(other): -999})
    assert (same.read_text(), other.read_text()) == ("60\n", "-999\n")
    assert caplog.messages == [f"set {other} to -999, from -5"]


@pytest.mark.parametrize(("present", "then"), [("1000\n", "2000\n"), ("3000\n", "3000\n")])
def test_room_is_only_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: str, then: str) -> None:
    """A larger nf_conntrack_max or hash size than is wanted stays."""
    path = tmp_path / "max"
    path.write_text(present)
    monkeypatch.setattr(sysctl, "ONLY_RAISED", {str(path)})
    apply({str(path): 2000})
    assert path.read_text() == then


def test_a_sysctl_that_cannot_be_set_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A missing file, a file without a number, and a refusal of the kernel don't stop the other settings."""
    words, fine = tmp_path / "words", tmp_path / "fine"
    words.write_text("many\n")
    fine.write_text("1\n")
    read_only = "/proc/sys/kernel/ngroups_max"  # mode 0444, and proc lets nobody write it
    apply({str(tmp_path / "missing"): 1, str(words): 2, read_only: 3, str(fine): 4})
    assert fine.read_text() == "4\n"
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert caplog.messages[0] == f"{tmp_path}/missing can't be set to 1: No such file or directory"
    assert caplog.messages[1].startswith(f"{words} can't be set to 2: invalid literal")
    assert caplog.messages[2].startswith(f"{read_only} can't be set to 3: ")


@pytest.mark.usefixtures("namespace")
def test_the_kernel_takes_them(caplog: pytest.LogCaptureFixture) -> None:
    """The real settings of a network namespace are made as they are wanted."""
    if not Path(NETFILTER, "nf_conntrack_udp_timeout").exists():
        pytest.skip("nf_conntrack is not loaded")
    conntrack = Conntrack(
        tcp_established_timeout=7201,
        tcp_close_wait_timeout=61,
        udp_timeout=11,
        udp_stream_timeout=181,
        tcp_be_liberal=True,
        max_per_core=0,  # the machine's, not the namespace's
    )
    settings = wanted(Config(conntrack=conntrack), 2)
    del settings[sysctl.OOM_SCORE_ADJ]
    assert len(settings) == 5
    apply(settings)
    assert {path: int(Path(path).read_text()) for path in settings} == settings
    assert caplog.messages == []


def test_a_configuration_that_asks_for_nothing_writes_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that only sets sysctls opens no file, not even its own score, if the configuration asks for none."""
    monkeypatch.setattr(Path, "read_text", None)
    with caplog.at_level(logging.INFO):
        sysctl.set_up_node(Config(conntrack=NO_SYSCTLS, oom_score_adj=7))
    assert caplog.messages == ["the configuration asks for no sysctl: there is nothing to set"]


def test_the_settings_are_there_when_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that only sets sysctls has the kernel load connection tracking before it makes the settings."""
    done: list[object] = []
    monkeypatch.setattr(sysctl, "check_text", lambda text: done.append("ct state" in text))
    monkeypatch.setattr(sysctl, "apply", done.append)
    sysctl.set_up_node(Config(oom_score_adj=7))
    loaded, settings = done
    assert loaded is True
    assert settings == {k: v for k, v in wanted(Config(), os.cpu_count() or 1).items() if k != sysctl.OOM_SCORE_ADJ}


@pytest.mark.usefixtures("namespace")
def test_a_trial_of_connection_tracking_leaves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The kernel takes the rule that has it load connection tracking, and has no table afterwards."""
    with caplog.at_level(logging.INFO):
        sysctl.load_conntrack()
    assert (caplog.messages, tables()) == ([], [])


@pytest.mark.usefixtures("namespace")
def test_a_container_after_its_init_container_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Once a privileged process has made the settings, the printed DaemonSet's agent has nothing to warn of.

    It isn't root, and may neither write sysctls nor lower its score.
    """
    if not Path(NETFILTER, "nf_conntrack_udp_timeout").exists():
        pytest.skip("nf_conntrack is not loaded")
    room, buckets = (int(Path(path).read_text()) for path in (sysctl.CONNTRACK_MAX, sysctl.HASH_SIZE))
    least = min(room, buckets * sysctl.ENTRIES_PER_BUCKET)  # the machine's, which no test may change
    config = Config(conntrack=Conntrack(max_per_core=1, min=least), oom_score_adj=OOM_SCORE_ADJ)
    settings = wanted(config, 1)
    apply({path: value for path, value in settings.items() if path != sysctl.OOM_SCORE_ADJ})
    caplog.clear()
    with caplog.at_level(logging.INFO):
        os.setegid(AGENT)
        os.seteuid(AGENT)
        try:
            apply(settings)
        finally:
            os.seteuid(0)
            os.setegid(0)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert caplog.messages == [f"{sysctl.OOM_SCORE_ADJ} can't be set to {OOM_SCORE_ADJ}: Permission denied"]
