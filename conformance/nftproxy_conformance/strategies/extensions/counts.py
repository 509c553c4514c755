"""Counts for each Service, or none."""

from __future__ import annotations

from hypothesis import strategies as st

from nftproxy.extensions.counts.fields import SERVICE_COUNTS
from nftproxy_conformance.strategies.extensions.inputs import Inputs

COUNTS = Inputs(fields=lambda _: {SERVICE_COUNTS: st.booleans()})
