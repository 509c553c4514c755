"""The configuration of counts for each Service."""

from __future__ import annotations

from nftproxy.model.config_fields import ConfigField, FieldForm

SERVICE_COUNTS = ConfigField("serviceCounts", FieldForm.TRUTH, default=False, help="Count each Service's connections.")
"""Whether the connections of each Service port are counted."""
