"""Candidates of a list, by their weights."""

from __future__ import annotations

from nftproxy.model.addresses import Address
from nftproxy.model.objects import Place
from nftproxy.policy.choosing.verdicts import Candidate


def candidates(*weights: int) -> list[Candidate]:
    """Endpoints of these weights."""
    return [
        Candidate(Place(Address(f"10.1.{number >> 8}.{number & 255}"), 8080), True, False, False, None, None, weight)
        for number, weight in enumerate(weights, 1)
    ]
