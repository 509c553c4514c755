"""Closed ports and answered pings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from nftproxy.extensions.external_addresses.fields import EXTERNAL_ADDRESSES, PINGS, ExternalAddresses, Ping
from nftproxy.model.config_fields import ConfigField
from nftproxy.model.settings import Config
from nftproxy_conformance.strategies.extensions.inputs import Inputs


def _fields(config: Config) -> Mapping[ConfigField[Any], st.SearchStrategy[Any]]:
    """Pings, and closed ports, which take ranges."""
    words = ExternalAddresses if config.external_ip_cidrs else [ExternalAddresses.OPEN]
    return {PINGS: st.sampled_from(Ping), EXTERNAL_ADDRESSES: st.sampled_from(words)}


CLOSED_AND_PINGED = Inputs(fields=_fields)
