"""Closed ports and answered pings at addresses of Services (`nftproxy.externalAddresses`, `nftproxy.ping`)."""

from nftproxy.explanation.explained_extension import ExplainedExtension
from nftproxy.extensions.external_addresses.fields import is_asked_for
from nftproxy.extensions.external_addresses.rules import PORT, TABLE, elements, ports, table
from nftproxy.extensions.external_addresses.words import closes, listed, remarks

EXTERNAL_ADDRESSES = ExplainedExtension(
    name="external_addresses",
    templates=(TABLE, PORT),
    is_everywhere=is_asked_for,
    elements=elements,
    table=table,
    ports=ports,
    closes=closes,
    remarks=remarks,
    listed=listed,
)
