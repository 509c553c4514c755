"""The extensions of this nftproxy: the only place that names them."""

from nftproxy.extensions.client_limits.feature import CLIENT_LIMITS
from nftproxy.extensions.counts.feature import COUNTS
from nftproxy.extensions.external_addresses.feature import EXTERNAL_ADDRESSES
from nftproxy.extensions.failover.feature import FAILOVER
from nftproxy.extensions.fast_path.feature import FAST_PATH
from nftproxy.rules.renderer import TEMPLATE_NAMES

INSTALLED = (EXTERNAL_ADDRESSES, COUNTS, FAILOVER, CLIENT_LIMITS, FAST_PATH)
"""The order is that of their rules at a place of the proxy's templates."""

ALL_TEMPLATES = (*TEMPLATE_NAMES, *(name for each in INSTALLED for name in each.templates))
"""The names of all templates."""
