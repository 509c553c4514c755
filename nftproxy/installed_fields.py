"""The fields of the configuration that the installed extensions declare.

Apart from installed.py, as commands read the configuration before they import the rest.
"""

from typing import Any

from nftproxy.extensions.algorithms.fields import DEFAULT_ALGORITHM
from nftproxy.extensions.counts.fields import SERVICE_COUNTS
from nftproxy.extensions.external_addresses.fields import EXTERNAL_ADDRESSES, PINGS
from nftproxy.extensions.failover.fields import DEFAULT_FAILOVER
from nftproxy.extensions.fast_path.fields import CONNECTIONS, INTERFACES
from nftproxy.extensions.least_connections.fields import DEFAULT_BALANCING
from nftproxy.extensions.masquerade_address.fields import MASQUERADE_ADDRESS
from nftproxy.model.annotations import joined
from nftproxy.model.config_fields import ConfigField

FIELDS: tuple[ConfigField[Any], ...] = joined(
    (
        DEFAULT_ALGORITHM,
        DEFAULT_BALANCING,
        MASQUERADE_ADDRESS,
        EXTERNAL_ADDRESSES,
        PINGS,
        DEFAULT_FAILOVER,
        SERVICE_COUNTS,
        INTERFACES,
        CONNECTIONS,
    )
)
"""The order is that of /configz."""
