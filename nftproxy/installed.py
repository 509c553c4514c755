"""The extensions of this nftproxy: the only place that names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nftproxy.extensions.algorithms.feature import ALGORITHMS
from nftproxy.extensions.client_limits.feature import CLIENT_LIMITS
from nftproxy.extensions.counts.feature import COUNTS
from nftproxy.extensions.external_addresses.feature import EXTERNAL_ADDRESSES
from nftproxy.extensions.failover.feature import FAILOVER
from nftproxy.extensions.fast_path.feature import FAST_PATH
from nftproxy.extensions.least_connections.feature import LEAST_CONNECTIONS
from nftproxy.extensions.localhost.feature import LOCALHOST
from nftproxy.extensions.masquerade_address.feature import MASQUERADE_ADDRESS
from nftproxy.model.annotations import joined
from nftproxy.model.codes import AnyCode, Code
from nftproxy.policy.extension import Extension
from nftproxy.rules.renderer import TEMPLATE_NAMES

if TYPE_CHECKING:
    from nftproxy.agent.agent_part import AgentExtensions
    from nftproxy.doctor.diagnosis import Check

INSTALLED: tuple[Extension, ...] = (
    ALGORITHMS,
    EXTERNAL_ADDRESSES,
    COUNTS,
    FAILOVER,
    CLIENT_LIMITS,
    FAST_PATH,
    LEAST_CONNECTIONS,
    LOCALHOST,
    MASQUERADE_ADDRESS,
)
"""The order is that of their rules at a place of the proxy's templates."""

OWN_TABLES = tuple(each.own_table for each in INSTALLED if each.own_table)
"""The names of the extensions' own tables, of nft's family inet."""

ALL_TEMPLATES = (*TEMPLATE_NAMES, *(name for each in INSTALLED for name in each.templates))
"""The names of all templates."""

CODES: tuple[AnyCode, ...] = tuple(sorted((*Code, *(code for each in INSTALLED for code in each.codes))))
"""All codes of warnings, by their numbers."""

OPTIONS = joined(option for each in INSTALLED for option in each.options)
"""All annotations."""


def agent_extensions() -> AgentExtensions:
    """Return what the extensions add to the agent.  Only the agent imports it."""
    from nftproxy.agent.agent_part import AgentExtensions
    from nftproxy.extensions.counts.agent.part import CountsPart
    from nftproxy.extensions.failover.agent.part import FailoverPart
    from nftproxy.extensions.failover.agent.silence_watch import FAILOVER_METRICS
    from nftproxy.extensions.fast_path.agent.part import FAST_PATH_METRICS, FastPathPart
    from nftproxy.extensions.least_connections.agent.load_watch import LEAST_CONNECTIONS_METRICS
    from nftproxy.extensions.least_connections.agent.part import LeastConnectionsPart
    from nftproxy.extensions.localhost.agent.forwarder import LOCALHOST_METRICS
    from nftproxy.extensions.localhost.agent.part import LocalhostPart
    from nftproxy.extensions.masquerade_address.agent.part import MasqueradeAddressPart

    return AgentExtensions(
        parts=(
            LocalhostPart.make,
            FailoverPart,
            LeastConnectionsPart,
            CountsPart,
            FastPathPart,
            MasqueradeAddressPart.make,
        ),
        metrics=(
            LOCALHOST_METRICS,
            FAILOVER_METRICS,
            LEAST_CONNECTIONS_METRICS,
            FAST_PATH_METRICS,
        ),
    )


def checks() -> Sequence[Check]:
    """Return the extensions' checks of a node.  Only `doctor` imports them."""
    from nftproxy.extensions.fast_path.checks import passed_by

    return (passed_by,)
