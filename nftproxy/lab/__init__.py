"""Real packets: a node in a network namespace, and what its rules do to connections.

`Lab` tries many single packets a second and knows what became of each; `RealNetwork` has whole connections between
real servers and clients.
"""

from nftproxy.lab.lab import Lab, obstacle
from nftproxy.lab.namespace import LabError, Namespace
from nftproxy.lab.outcome import (
    DROPPED,
    NODE,
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
from nftproxy.lab.pods import RealHost, RealNetwork, RealNode
from nftproxy.lab.topology import Origin

__all__ = [
    "DROPPED",
    "NODE",
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
