"""Answers to lists, for reflectors."""

from __future__ import annotations

from nftproxy.api.reflector import Reflector
from nftproxy.api.responses import ENOUGH
from nftproxy.model.events import Event


def receive_list(reflector: Reflector, body: bytes, now: float = 0.0, piece: int = ENOUGH) -> list[Event]:
    """The events of a reflector when a page comes in pieces of `piece` bytes."""
    for start in range(0, len(body), piece):
        reflector.receive_list_data(body[start : start + piece], now)
        if not reflector.is_open:
            return []
    return reflector.receive_list_end(now)
