"""The part of the source of masqueraded connections in the agent: it reads interfaces, and warns."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence

from nftproxy.agent.agent_part import AgentContext, AgentPart
from nftproxy.extensions.masquerade_address.codes import MasqueradeAddressCode
from nftproxy.extensions.masquerade_address.fields import MASQUERADE_ADDRESS
from nftproxy.extensions.masquerade_address.sources import InterfaceAddresses, interfaces, node_source, words
from nftproxy.model.events import Event, Put
from nftproxy.sources.interfaces import watch_addresses_of


class MasqueradeAddressPart(AgentPart):
    """Follows the configured interfaces, and warns while the node lacks the configured addresses."""

    def __init__(self, context: AgentContext) -> None:
        self._pipeline = context.pipeline
        self._names = interfaces(context.pipeline.settings.config)
        self._faults = context.faults

    @classmethod
    def make(cls, context: AgentContext) -> AgentPart | None:
        """Return the part, None if nothing is configured."""
        return cls(context) if context.pipeline.settings.config[MASQUERADE_ADDRESS] else None

    def sources(self) -> Mapping[str, AsyncGenerator[Sequence[Event]]]:
        """The addresses of the configured interfaces."""
        return {"interfaces for masquerading": self._events()} if self._names else {}

    async def _events(self) -> AsyncGenerator[Sequence[Event]]:
        async with contextlib.aclosing(watch_addresses_of(self._names)) as listings:
            async for rows in listings:
                yield [Put(InterfaceAddresses(rows))]

    def rules_loaded(self) -> None:
        """Report the families whose masqueraded connections don't get the configured source."""
        state, config = self._pipeline.state, self._pipeline.settings.config
        found = {family: node_source(state, config, family).fault for family in self._pipeline.generations}
        warnings = {(family, fault): words(family, fault) for family, fault in found.items() if fault}
        recovery = "masqueraded connections get the configured source again"
        self._faults.report_ongoing(MasqueradeAddressCode.MASQUERADE_ADDRESS_ABSENT, warnings, recovery)
