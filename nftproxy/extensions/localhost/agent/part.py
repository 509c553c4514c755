"""The part of localhost in the agent: it listens on node ports and forwards."""

from __future__ import annotations

from nftproxy.agent.agent_part import AgentContext, AgentPart
from nftproxy.extensions.localhost.agent.forwarder import LocalhostForwarder
from nftproxy.extensions.localhost.forwardings import LocalhostPorts


class LocalhostPart(AgentPart):
    """Runs the forwarder of node ports at localhost."""

    def __init__(self, context: AgentContext) -> None:
        self._ports = context.pipeline.view(LocalhostPorts)
        self._forwarder = LocalhostForwarder(context.metrics, context.report)

    @classmethod
    def make(cls, context: AgentContext) -> LocalhostPart | None:
        """Make the part if the configuration asks for localhost."""
        return cls(context) if context.pipeline.settings.config.node_port_addresses.localhost else None

    def rules_loaded(self) -> None:
        """Listen on the present ports."""
        self._forwarder.serve(self._ports.by_port)

    async def end(self) -> None:
        """Cut all connections."""
        await self._forwarder.close()
