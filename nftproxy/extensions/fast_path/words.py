"""The words of the fast path, in `explain` and `list`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nftproxy.explanation.question import ToAddress
from nftproxy.explanation.words import Words
from nftproxy.extensions.fast_path.codes import FastPathCode
from nftproxy.extensions.fast_path.fields import INTERFACES
from nftproxy.model.addresses import Protocol
from nftproxy.model.objects import Service
from nftproxy.pipeline import Pipeline


def _remarks_on_question(pipeline: Pipeline, spots: Sequence[ToAddress]) -> Iterator[str]:
    """A remark if established connections to any of these places take the fast path."""
    config = pipeline.settings.config
    if not (config[INTERFACES] and any(spot.protocol is not Protocol.SCTP for spot in spots)):
        return
    if "fast_path" in pipeline.unavailable:
        code = FastPathCode.FAST_PATH_INCOMPLETE
        yield f"{code}: there is no fast path at present, so all packets of a connection pass all chains"
    else:
        yield (
            "once established, a connection to an endpoint that arrives and leaves at "
            f"{', '.join(config[INTERFACES])} takes the fast path, past all chains"
        )


def _listed(pipeline: Pipeline, service: Service) -> Iterator[str]:
    """A note if established connections to the Service take the fast path."""
    interfaces = pipeline.settings.config[INTERFACES]
    is_there = bool(interfaces) and "fast_path" not in pipeline.unavailable
    if is_there and any(port.protocol is not Protocol.SCTP for port in service.ports):
        yield f"established connections at {', '.join(interfaces)} take the fast path"


WORDS = Words(remarks_on_question=_remarks_on_question, listed=_listed)
