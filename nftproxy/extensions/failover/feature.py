"""Failover from endpoints that are silent, that refuse, or that are gone (`nftproxy.dev/failover`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nftproxy.explanation.explained_extension import ExplainedExtension
from nftproxy.extensions.failover.annotations import FAILOVER as OPTION
from nftproxy.extensions.failover.codes import FailoverCode
from nftproxy.extensions.failover.fields import DEFAULT_FAILOVER
from nftproxy.extensions.failover.gone_addresses import GoneAddresses
from nftproxy.extensions.failover.rules import PORT, TABLE, FailoverTable, elements, ports, table, uses
from nftproxy.extensions.failover.silent_places import SilentPlaces
from nftproxy.extensions.failover.watched import concerned, left_out
from nftproxy.model.annotations import PLAIN, Options
from nftproxy.model.settings import Config
from nftproxy.policy.facts import Part

if TYPE_CHECKING:
    from nftproxy.explanation.words import Words


def _defaults(config: Config) -> Options:
    return Options.of({OPTION: config[DEFAULT_FAILOVER]}) if config[DEFAULT_FAILOVER] else PLAIN


def _words() -> Words:
    from nftproxy.extensions.failover.words import WORDS

    return WORDS


FAILOVER = ExplainedExtension(
    name="failover",
    codes=tuple(FailoverCode),
    templates=(TABLE, PORT),
    options=(OPTION,),
    uses=uses,
    defaults=_defaults,
    elements=elements,
    table=table,
    later=lambda _: Part(TABLE, FailoverTable()),
    ports=ports,
    view=GoneAddresses,
    left_out=left_out,
    concerned={SilentPlaces: concerned},
    words=_words,
)
