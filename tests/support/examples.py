"""The clusters in examples/, as pipelines that have seen them."""

from __future__ import annotations

from pathlib import Path

from nftproxy.installed import INSTALLED
from nftproxy.installed_fields import FIELDS
from nftproxy.model.settings import Capabilities
from nftproxy.pipeline import Pipeline
from nftproxy.policy.extension import Settings
from nftproxy.sources.config_documents import load_config
from nftproxy.sources.files import load
from tests.support.factories import INSTALLED_KINDS, config_of, renderer

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path.name for path in (CHECKOUT / "examples").iterdir() if (path / "manifests").is_dir())
NODE = "node-a"


def example_pipeline(name: str, *, wide_maps: bool = False, **tweaks: object) -> Pipeline:
    """The pipeline of an example, with its configuration and tweaks to that.

    Args:
        name: the example's directory.
        wide_maps: whether IPv6 clients are remembered in maps, which nft 1.0.6 can't do.
        tweaks: fields of `Config`.
    """
    where = CHECKOUT / "examples" / name
    config = config_of(load_config(where / "config.yaml", FIELDS)[0], **tweaks)
    made = Pipeline(NODE, Settings(config, Capabilities(wide_maps=wide_maps), INSTALLED), renderer())
    made.ingest(load([where / "manifests"], INSTALLED_KINDS).listing())
    return made
