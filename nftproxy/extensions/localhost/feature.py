"""Node ports at localhost (`nodePortAddresses`, KEP-6032): the agent listens there, and no rule serves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nftproxy.explanation.explained_extension import ExplainedExtension
from nftproxy.extensions.localhost.codes import LocalhostCode
from nftproxy.extensions.localhost.forwardings import LocalhostPorts

if TYPE_CHECKING:
    from nftproxy.explanation.words import Words


def _words() -> Words:
    from nftproxy.extensions.localhost.words import WORDS

    return WORDS


LOCALHOST = ExplainedExtension(
    name="localhost",
    codes=tuple(LocalhostCode),
    is_everywhere=lambda config: bool(config.node_port_addresses.localhost),
    view=lambda settings, _: LocalhostPorts(settings.config),
    words=_words,
)
