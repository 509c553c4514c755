"""Two metrics of kube-proxy's, out of the text that it shows (the Prometheus text format)."""

from __future__ import annotations

import re

from nftproxy.doctor.facts import Metrics

INVALID_DROPPED = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total"
LOCALHOST_ACCEPTED = "kubeproxy_iptables_localhost_nodeports_accepted_packets_total"
"""Of kube-proxy 1.31 and later, in iptables mode (pkg/proxy/metrics)."""


def read_metrics(source: str, text: str) -> Metrics:
    """The two metrics; what isn't there, or reads otherwise, counts as absent."""
    return Metrics(source, _total(text, INVALID_DROPPED), _total(text, LOCALHOST_ACCEPTED))


def _total(text: str, name: str) -> int | None:
    """The sum over all labels: there are none today, and one for each IP family may come."""
    values = re.findall(rf"^{name}(?:\{{[^}}\n]*\}})? ([0-9.]+(?:e\+?[0-9]+)?)", text, re.MULTILINE)
    try:
        return int(sum(map(float, values))) if values else None
    except (OverflowError, ValueError):
        return None
