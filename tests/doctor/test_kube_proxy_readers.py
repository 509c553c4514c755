"""kube-proxy's configuration is read from wherever it is, and nothing that it may hold is fatal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nftproxy.config.parse_config import EMPTY_CONFIG
from nftproxy.doctor.kube_proxy_readers import flags_of, of_configz, read_configuration, read_configz
from nftproxy.installed_fields import FIELDS

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("ab.\x1b", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from("mode Mode ipvs IPVS conntrack Linux nodePortAddresses NodePortAddresses iptables".split())


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (["--config=/a_b/c", "--v=2"], {"config": "/a_b/c", "v": "2"}),
        (["--proxy_mode", "ipvs", "--masquerade-all"], {"proxy-mode": "ipvs", "masquerade-all": "true"}),
        (["--masquerade-all", "stray", "--ipvs-scheduler", "lc"], {"masquerade-all": "true", "ipvs-scheduler": "lc"}),
        (["-v", "2", "--masquerade-all=false"], {"masquerade-all": "false"}),
        ([], {}),
    ],
)
def test_flags_of_a_command_line(arguments: list[str], flags: dict[str, str]) -> None:
    """Flags are read as Go reads them: a boolean takes no second word, underscores in names are dashes."""
    assert flags_of(arguments) == flags


def test_flags_go_before_the_file() -> None:
    """A flag overrides the file."""
    found = read_configuration(
        EMPTY_CONFIG | {"mode": "iptables"}, "file", {"proxy-mode": "ipvs", "config": "/x"}, FIELDS
    )
    assert found.mode == "ipvs"


def test_an_empty_mode_is_kube_proxys_default() -> None:
    """Where no mode is given kube-proxy runs in iptables mode."""
    assert read_configuration(EMPTY_CONFIG, "file", {}, FIELDS).mode == "iptables"


@pytest.mark.parametrize("linux", [True, False])
def test_names_of_go(linux: bool) -> None:
    """At /configz fields have Go's names, and conntrack has moved with 1.31."""
    conntrack = {"Conntrack": {"TCPBeLiberal": True}}
    values = {"Mode": "nftables", "NodePortAddresses": ["primary"]} | ({"Linux": conntrack} if linux else conntrack)
    found = of_configz(values, "url")
    assert (found.mode, found.node_port_addresses, found.tcp_be_liberal) == ("nftables", ("primary",), True)


@given(st.dictionaries(NAMES, ANYTHING, max_size=4))
def test_nothing_raises(values: dict[str, Any]) -> None:
    """Any configuration or answer is read as far as possible, and its faults are listed."""
    assert read_configuration(dict(EMPTY_CONFIG) | values, "file", {}, FIELDS).source == "file"
    assert of_configz(values, "url").faults == ()
    assert read_configz({"kubeproxy.config.k8s.io": values}) in (values, None)
