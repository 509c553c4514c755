"""The fields that extensions declare."""

from __future__ import annotations

import importlib
import pickle

from nftproxy.config.configz import configz
from nftproxy.config.declared_fields import declared_texts
from nftproxy.extensions.counts.fields import SERVICE_COUNTS
from nftproxy.extensions.fast_path.fields import CONNECTIONS, INTERFACES, FastPathScope
from nftproxy.installed_fields import FIELDS
from nftproxy.model.config_fields import ConfigField
from nftproxy.model.settings import Config
from tests.conftest import CHECKOUT


def test_each_field_of_an_extension_is_in_the_list() -> None:
    """A field that features declare is read from the file, once."""
    paths = sorted((CHECKOUT / "nftproxy" / "extensions").glob("*/fields.py"))
    modules = [importlib.import_module(f"nftproxy.extensions.{path.parent.name}.fields") for path in paths]
    declared = [each for module in modules for each in vars(module).values() if isinstance(each, ConfigField)]
    assert sorted({each.name for each in declared}) == sorted(each.name for each in FIELDS)


def test_a_configuration_has_values_for_its_fields() -> None:
    """A field has its default until it has a value, and the last value counts."""
    config = Config().having({INTERFACES: ("eth0",), SERVICE_COUNTS: True})
    assert (config[SERVICE_COUNTS], config[INTERFACES], config[CONNECTIONS]) == (
        True,
        ("eth0",),
        FastPathScope.SERVICES,
    )
    assert not config.having({SERVICE_COUNTS: False})[SERVICE_COUNTS]
    assert Config()[INTERFACES] == ()


def test_fields_of_a_section_are_shown_together() -> None:
    """A file has the fields of a section in one place."""
    config = Config().having({INTERFACES: ("eth0", "veth*"), CONNECTIONS: FastPathScope.ALL})
    assert declared_texts(config) == {"fastPath": {"interfaces": ["eth0", "veth*"], "connections": "All"}}


def test_a_configuration_can_be_sent_to_another_process() -> None:
    """A copy of a configuration has the same values."""
    config = Config().having({CONNECTIONS: FastPathScope.ALL})
    copy = pickle.loads(pickle.dumps(config))
    assert copy[CONNECTIONS] is FastPathScope.ALL
    assert configz(copy) == configz(config)
