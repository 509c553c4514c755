"""kube-proxy's flags: each lands in its field of the configuration."""

from __future__ import annotations

import msgspec
import pytest

from nftproxy.api.config import parse_config
from nftproxy.api.flags import FLAGS, override
from nftproxy.model.errors import BadInput
from nftproxy.model.settings import Config

HEAD = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}
TEXTS = {
    "bind-address": "192.168.0.2",
    "bind-address-hard-fail": "true",
    "cluster-cidr": "10.1.0.0/16,fd00:1::/48",
    "config-sync-period": "1m",
    "conntrack-max-per-core": "1000",
    "conntrack-min": "2000",
    "conntrack-tcp-be-liberal": "true",
    "conntrack-tcp-timeout-close-wait": "1m",
    "conntrack-tcp-timeout-established": "2m",
    "conntrack-udp-timeout": "3m",
    "conntrack-udp-timeout-stream": "4m",
    "detect-local-mode": "NodeCIDR",
    "feature-gates": "AllowServiceExternalIPs=false",
    "healthz-bind-address": "127.0.0.1:1",
    "hostname-override": "node-z",
    "kubeconfig": "/k",
    "masquerade-all": "true",
    "metrics-bind-address": "127.0.0.1:2",
    "nodeport-addresses": "10.0.0.0/8, fd00::/8",
    "oom-score-adj": "-5",
    "pod-bridge-interface": "br0",
    "pod-interface-name-prefix": "veth",
    "proxy-mode": "nftables",
}


def test_every_flag_has_a_text_here() -> None:
    """The texts below are of all flags, and of no others."""
    assert TEXTS.keys() == {flag.name for flag in FLAGS}


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "proxy-mode"])
def test_a_flag_changes_the_configuration(name: str) -> None:
    """Each flag changes one thing of the default configuration, and its text is accepted there."""
    config, warnings = parse_config(override(HEAD, {name: TEXTS[name]}), "flags")
    before, after = msgspec.structs.asdict(Config()), msgspec.structs.asdict(config)
    assert (sum(before[field] != after[field] for field in before), warnings) == (1, [])


def test_a_flag_goes_before_the_file() -> None:
    """A flag overrides its own field of the file, and leaves the section's others as they are."""
    raw = {**HEAD, "conntrack": {"min": 5, "maxPerCore": 6}}
    config, _ = parse_config(override(raw, {"conntrack-min": "7"}), "f")
    assert (config.conntrack.min, config.conntrack.max_per_core) == (7, 6)
    assert raw["conntrack"] == {"min": 5, "maxPerCore": 6}


@pytest.mark.parametrize(
    ("name", "text"), [("conntrack-min", "many"), ("masquerade-all", "maybe"), ("proxy-mode", "ipvs")]
)
def test_a_bad_text_is_refused_like_the_file(name: str, text: str) -> None:
    """What the file couldn't say, a flag can't either."""
    with pytest.raises(BadInput, match=repr(text)):
        parse_config(override(HEAD, {name: text}), "flags")
