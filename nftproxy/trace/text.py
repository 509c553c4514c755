"""Traces as text: a paragraph for each packet, a line for each step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nftproxy.explanation.answer import Fate, outcome
from nftproxy.model.addresses import host_port, port_text
from nftproxy.model.texts import printable
from nftproxy.trace.tracing import Trace

NO_STEP = "none of our rules matched"


def text(traces: Iterable[Trace], rules: str, untried: Sequence[str]) -> Iterator[str]:
    """The lines of traces, without newlines.  `rules` names the origin of the rules, `untried` the
    parts of the node that the copy lacks.
    """
    yield ""
    yield f"traced through a throw-away copy of {rules}"
    yield f"not tried: {'; '.join(map(printable, untried))}"
    for trace in traces:
        yield ""
        yield from _trace(trace)


def _trace(trace: Trace) -> Iterator[str]:
    to = port_text(host_port(trace.address, trace.port), trace.protocol.value)
    yield f"{trace.source} ({trace.kind.value}) to {to}:"
    hook = ""
    wide = max((len(step.chain) for step in trace.steps), default=0)
    for step in trace.steps:
        here = f"{step.hook} {step.priority}"
        yield f"  {'' if here == hook else here:<17} {step.chain:<{wide}}  {printable(step.words)}"
        hook = here
    if not trace.steps:
        yield f"  {NO_STEP}"
    yield f"  => {_result(trace)}"
    yield from (f"  DIFFERS: {difference}" for difference in trace.differences)
    if not trace.differences:
        yield "  as explained"


def _result(trace: Trace) -> str:
    if trace.fate is not Fate.ENDPOINT:
        return outcome(trace.fate, trace.rejection)
    source = "its source masqueraded" if trace.is_masqueraded else "its source kept"
    return f"{trace.endpoint or 'the server at this address and port'}, {source}: {trace.source_there}"
