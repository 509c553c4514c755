"""kube-proxy's flags: their values and their fields.  test_kube_proxy.py tries each in a process."""

from __future__ import annotations

import pytest

from nftproxy.config.flags import FLAGS, OTHER_FLAGS, OWN_FLAGS, flag_of, flags_by_path, override, truth
from nftproxy.config.parse_config import parse_config
from nftproxy.installed_fields import FIELDS
from nftproxy.model.errors import BadInput

DECLARED = [flag_of(field) for field in FIELDS]
HEAD = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}


def test_each_flag_has_one_row() -> None:
    """No flag is listed twice, and all flags but `OTHER_FLAGS` have a field."""
    names = [flag.name for flag in (*FLAGS, *OTHER_FLAGS, *OWN_FLAGS, *DECLARED)]
    assert len(names) == len(set(names))
    assert all(flag.path for flag in (*FLAGS, *OWN_FLAGS, *DECLARED))
    assert not any(flag.path for flag in OTHER_FLAGS)


def test_flags_of_our_own_say_what_the_section_says() -> None:
    """Each flag of nftproxy alone has a field of its section nftproxy.  A bad text is reported by the flag's name."""
    given = {
        "masquerade-fully-random": "true",
        "protected-ports": "22, 2379-2380",
        "external-addresses": "closed",
        "ping": "answer",
        "external-ip-cidrs": "203.0.113.0/24,2001:db8::/32",
        "service-proxy-name": "canary",
        "startup-taint": "nftproxy.dev/not-ready",
        "algorithm": "round-robin",
        "failover": "silent",
        "service-counts": "true",
        "fast-path-interfaces": "eth0,veth*",
        "fast-path-connections": "All",
        "masquerade-address": "192.0.2.1-192.0.2.4,eth1",
        "element-budget": "700000",
        "agent-socket": "/tmp/agent.sock",
    }
    assert given.keys() == {flag.name for flag in (*OWN_FLAGS, *DECLARED)}
    section = {
        "masqueradeFullyRandom": True,
        "protectedPorts": [22, "2379-2380"],
        "externalAddresses": "closed",
        "ping": "answer",
        "externalIPCIDRs": ["203.0.113.0/24", "2001:db8::/32"],
        "serviceProxyName": "canary",
        "startupTaint": "nftproxy.dev/not-ready",
        "algorithm": "round-robin",
        "failover": ["silent"],
        "serviceCounts": True,
        "fastPath": {"interfaces": ["eth0", "veth*"], "connections": "All"},
        "masqueradeAddress": ["192.0.2.1-192.0.2.4", "eth1"],
        "elementBudget": 700_000,
        "agentSocket": "/tmp/agent.sock",
    }
    assert parse_config(override(HEAD, given, FIELDS), "f", FIELDS) == parse_config(
        {**HEAD, "nftproxy": section}, "f", FIELDS
    )
    for bad, why in (
        ({"protected-ports": "ssh"}, "--protected-ports: 'ssh' is not a port"),
        ({"fast-path-interfaces": "a b"}, "--fast-path-interfaces: 'a b' is not an interface's name"),
    ):
        with pytest.raises(BadInput, match=f"^NFT102: {why}"):
            parse_config(override(HEAD, bad, FIELDS), "f", FIELDS, flags_by_path(bad, FIELDS))


def test_a_flag_goes_before_the_file() -> None:
    """A flag overrides its own field of the file, and leaves the section's other fields alone."""
    raw = {**HEAD, "conntrack": {"min": 5, "maxPerCore": 6}}
    config, _ = parse_config(override(raw, {"conntrack-min": "7"}), "f", FIELDS)
    assert (config.conntrack.min, config.conntrack.max_per_core) == (7, 6)
    assert raw["conntrack"] == {"min": 5, "maxPerCore": 6}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("conntrack-min", "many"),
        ("conntrack-min", "--5"),
        ("conntrack-min", "9" * 30),
        ("masquerade-all", "maybe"),
        ("proxy-mode", "userspace"),
        ("v", "high"),
    ],
)
def test_a_bad_text_is_refused_like_the_file(name: str, text: str) -> None:
    """A flag can't have a value that the file can't have."""
    with pytest.raises(BadInput, match=repr(text)):
        parse_config(override(HEAD, {name: text}), "flags", FIELDS)


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("t", True), ("True", True), ("FALSE", False), ("0", False), ("yes", "yes")]
)
def test_booleans_are_those_of_go(text: str, value: object) -> None:
    """Booleans are as in Go's strconv.ParseBool."""
    assert truth(text) == value


@pytest.mark.parametrize(("text", "verbosity"), [("4", 4), ("=4", 4)])
def test_short_flags_may_have_an_equals_sign(text: str, verbosity: int) -> None:
    """The text of -v=4, which reaches us as "=4", is that of -v 4."""
    assert override(HEAD, {"v": text})["logging"] == {"verbosity": verbosity}
