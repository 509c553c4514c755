"""Strategies for failover: which endpoints are silent or refuse, and the failures that a configuration names."""

from __future__ import annotations

from hypothesis import strategies as st

from nftproxy.extensions.failover.annotations import Failover
from nftproxy.extensions.failover.fields import DEFAULT_FAILOVER
from nftproxy.extensions.failover.silent_places import SilentPlaces
from nftproxy.model.addresses import Family
from nftproxy.model.objects import Place
from nftproxy_conformance.strategies.extensions.inputs import Inputs
from nftproxy_conformance.strategies.values import POD_IPS, some

silences: st.SearchStrategy[SilentPlaces] = some(
    [Place(address, port) for family in Family for address in POD_IPS[family] for port in (8080, 5353)], most=6
).map(lambda places: SilentPlaces(places, frozenset(places[::2])))
"""Silent endpoints, the longest silent first, of which every other one refuses."""

FAILOVER = Inputs(
    fields=lambda _: {DEFAULT_FAILOVER: st.sampled_from([frozenset(), frozenset(), frozenset(Failover)])},
    observed=((SilentPlaces(()), silences),),
)
