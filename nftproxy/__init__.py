"""A Kubernetes service proxy that renders Services and EndpointSlices into nftables rules."""

__version__ = "0.1.0"
