"""Real packets: a node in a network namespace, and the outcome of connections under its rules.

`Lab` tries many single packets a second and reports the outcome of each.  `RealNetwork` has whole connections between
real servers and clients.
"""

from nftproxy.trace.node import obstacle
from nftproxy_conformance.lab.lab import Lab
from nftproxy_conformance.lab.namespace import LabError, Namespace
from nftproxy_conformance.lab.outcome import (
    ANSWERED,
    DROPPED,
    NODE,
    PING,
    PORT_UNREACHABLE,
    TCP_RESET,
    UNTOUCHED,
    Address,
    Kind,
    Outcome,
    Probe,
    endpoint,
    is_even,
    is_spread,
)
from nftproxy_conformance.lab.pods import RealHost, RealNetwork, RealNode
from nftproxy_conformance.lab.topology import Origin

__all__ = [
    "ANSWERED",
    "DROPPED",
    "NODE",
    "PING",
    "PORT_UNREACHABLE",
    "TCP_RESET",
    "UNTOUCHED",
    "Address",
    "Kind",
    "Lab",
    "LabError",
    "Namespace",
    "Origin",
    "Outcome",
    "Probe",
    "RealHost",
    "RealNetwork",
    "RealNode",
    "endpoint",
    "is_even",
    "is_spread",
    "obstacle",
]
