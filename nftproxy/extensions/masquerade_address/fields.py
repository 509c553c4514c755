"""The configuration of the source of masqueraded connections."""

from __future__ import annotations

from nftproxy.model.addresses import AddressRange
from nftproxy.model.config_fields import ConfigField, FieldForm

MASQUERADE_ADDRESS: ConfigField[tuple[AddressRange | str, ...]] = ConfigField(
    "masqueradeAddress", FieldForm.NODE_ADDRESSES, (), "The source of masqueraded connections."
)
"""The source, or interfaces.  Empty for the kernel's choice."""
