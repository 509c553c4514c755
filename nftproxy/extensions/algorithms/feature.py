"""Algorithms and weights (`nftproxy.dev/algorithm`, `nftproxy.dev/weights`, `nftproxy.dev/weight`)."""

from __future__ import annotations

from nftproxy.model.annotations import ALGORITHM, PLAIN, WEIGHT, WEIGHTS, Algorithm, Options
from nftproxy.model.settings import Config
from nftproxy.policy.extension import Extension


def _defaults(config: Config) -> Options:
    return PLAIN if config.algorithm is Algorithm.RANDOM else Options.of({ALGORITHM: config.algorithm})


ALGORITHMS = Extension(name="algorithms", options=(ALGORITHM, WEIGHTS, WEIGHT), defaults=_defaults)
