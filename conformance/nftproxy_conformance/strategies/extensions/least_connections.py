"""Strategies for least connections: the factors of lists."""

from __future__ import annotations

from hypothesis import strategies as st

from nftproxy.extensions.least_connections.annotations import BALANCING, WORD
from nftproxy.extensions.least_connections.factors import ListKey, LoadFactors
from nftproxy.extensions.least_connections.fields import DEFAULT_BALANCING
from nftproxy.model.addresses import Family
from nftproxy.model.objects import Place, TrafficPolicy
from nftproxy_conformance.strategies.extensions.inputs import Inputs
from nftproxy_conformance.strategies.values import POD_IPS, SERVICES

load_factors: st.SearchStrategy[LoadFactors] = st.dictionaries(
    st.builds(
        ListKey,
        st.sampled_from(SERVICES),
        st.sampled_from(["", "http", "dns"]),
        st.sampled_from(Family),
        st.sampled_from(TrafficPolicy),
    ),
    st.dictionaries(
        st.builds(
            Place, st.sampled_from([*POD_IPS[Family.IPV4], *POD_IPS[Family.IPV6]]), st.sampled_from([8080, 5353])
        ),
        st.integers(1, 800),
        max_size=4,
    ),
    max_size=4,
).map(LoadFactors)
"""Factors of lists, whether or not there are such lists, and whether or not the endpoints are on them."""

LEAST_CONNECTIONS = Inputs(
    values={BALANCING: st.just(WORD)},
    fields=lambda _: {DEFAULT_BALANCING: st.just(WORD)},
    observed=((LoadFactors({}), load_factors),),
)
