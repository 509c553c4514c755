"""The words of an extension, which it adds to explanations and listings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nftproxy.explanation.answer import Admission, Case, PlaceRestriction
from nftproxy.explanation.clients import Client
from nftproxy.explanation.ownership import Served
from nftproxy.explanation.packet_path import AddedStage
from nftproxy.explanation.question import ToAddress
from nftproxy.model.objects import ObjectKey, Service
from nftproxy.model.pods import Pods
from nftproxy.pipeline import Pipeline
from nftproxy.policy.facts import PortFacts


class Restrictions(NamedTuple):
    """The restrictions of a front's clients, as `explain` says them.

    `is_guarded` says that source ranges apply to the front.
    """

    said: tuple[PlaceRestriction, ...] = ()
    is_guarded: bool = False


class Forwarded(NamedTuple):
    """A place that the agent serves without a rule: the Service and its port's name, and the outcome of connections.

    `front` is the kind of the place, and `how_remembered` says how clients come back to the same pod.
    """

    service: Service
    port: str
    case: Case
    front: str
    how_remembered: str


class Chosen(NamedTuple):
    """How an endpoint is drawn from a list, by a name, and in words."""

    name: str
    how: str


@dataclass(frozen=True)
class Words:
    """The words of an extension.

    Attributes:
        how_chosen: how one of several endpoints is drawn, given their number, None if the feature doesn't draw it.
        admission: the verdict on a client of a front, None if the feature says nothing about it.
        restrictions: the restrictions of a front's clients.
        stage: the stage of pictures at which its rules restrict clients, None without any.
        range_keys: the keys of the source ranges that concern a port.
        closes: the Service by which an external address rejects packets to a port that no Service has, or None.
        remarks: remarks about a front that a Service is served at.
        remarks_on_question: remarks about all places of a question together.
        forwarded: the outcome of connections to a place that the agent serves without a rule, None if it doesn't.
        noted: facts that the rules don't show, a line each.
        listed: the lines of `nftproxy list` about a Service.
    """

    how_chosen: Callable[[Pipeline, ToAddress, Service, int], Chosen | None] = lambda _, __, ___, ____: None
    admission: Callable[[Pipeline, ToAddress, Served, Client], Admission | None] = lambda _, __, ___, ____: None
    restrictions: Callable[[ToAddress, Served], Restrictions] = lambda _, __: Restrictions()
    stage: AddedStage | None = None
    range_keys: Callable[[PortFacts], Iterable[str]] = lambda _: ()
    closes: Callable[[Pipeline, ToAddress], ObjectKey | None] = lambda _, __: None
    remarks: Callable[[Pipeline, ToAddress, Served, Sequence[Client]], Iterable[str]] = lambda _, __, ___, ____: ()
    remarks_on_question: Callable[[Pipeline, Sequence[ToAddress]], Iterable[str]] = lambda _, __: ()
    forwarded: Callable[[Pipeline, ToAddress, Pods], Forwarded | None] = lambda _, __, ___: None
    noted: Callable[[Pipeline], Iterable[str]] = lambda _: ()
    listed: Callable[[Pipeline, Service], Iterable[str]] = lambda _, __: ()
