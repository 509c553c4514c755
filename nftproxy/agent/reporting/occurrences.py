"""The Events that an agent may send, as values: each says what happened to a Service or to the Node, with its code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from nftproxy.model.addresses import FAMILY_NAMES, Family
from nftproxy.model.codes import AnyCode, Code
from nftproxy.model.errors import Problem
from nftproxy.model.objects import ObjectKey
from nftproxy.policy.budget import Shortage
from nftproxy.policy.fronts import LostClaim
from nftproxy.policy.limits import Exceeded


class Occurrence(NamedTuple):
    """Something that happened to an object: a Service, or the Node (whose key has the namespace "").

    An occurrence that `lasts` is reported again and again, and counts once as long as it is the same.
    """

    subject: ObjectKey
    reason: str
    action: str
    note: str
    code: AnyCode
    is_warning: bool = True
    lasts: bool = False


class Fault(Protocol):
    """A fault of some part of the agent, which Events report."""

    def occurrences(self, node: str) -> Iterable[Occurrence]:
        """Return the Events that the agent of this node sends."""


def conflict(lost: LostClaim) -> Occurrence:
    """Return the occurrence of a Service that doesn't get an address or port that it claims.

    The note doesn't name the Service that has it, since readers of this namespace may not see other namespaces.
    """
    port = f" of port {lost.port_name}" if lost.port_name else ""
    note = f"{lost.what}{port} is not served: {lost.denial.sentence()}"
    return Occurrence(lost.service, "AddressConflict", "Claim", note, lost.denial.code)


def refusal(family: Family, service: ObjectKey, why: str) -> Occurrence:
    """Return the occurrence of a Service whose rules of a family the kernel refuses."""
    note = f"the kernel refuses its rules for {FAMILY_NAMES[family]}: {why}"
    return Occurrence(service, "RulesRefused", "Load", note, Code.QUARANTINED, lasts=True)


def excess(service: ObjectKey, excess: Exceeded | Shortage) -> Occurrence:
    """Return the occurrence of a Service without rules, as it exceeds a limit or the budget."""
    return Occurrence(service, "LimitExceeded", "Load", f"not served: {excess.reason}", excess.code, lasts=True)


def unused_annotations(problems: Iterable[Problem]) -> Iterator[Occurrence]:
    """Yield an occurrence for each of nftproxy's annotations on a Service without an effect.  Skip other problems."""
    for problem in problems:
        kind, _, name = problem.object.partition(" ")
        if problem.code is Code.ANNOTATION_UNUSED and kind == "Service":
            note = f"{problem.field}: {problem.message}"
            yield Occurrence(ObjectKey(*name.split("/", 1)), "AnnotationUnused", "Parse", note, problem.code)


def invalid_configuration(node: str, fault: str) -> Occurrence:
    """Return the occurrence of a changed configuration that can't be used."""
    note = f"the configuration has changed and can't be used; the previous configuration stays in force: {fault}"
    code = Code.CONFIGURATION_NOT_APPLIED
    return Occurrence(ObjectKey("", node), "InvalidConfiguration", "Configure", note, code)


def startup_taint_stays(node: str, why: str) -> Occurrence:
    """Return the occurrence of a startup taint that can't be removed from the Node."""
    return Occurrence(ObjectKey("", node), "StartupTaintStays", "RemoveTaint", why, Code.STARTUP_TAINT_STAYS)


def start(node: str) -> Occurrence:
    """Return the occurrence of the agent's start, in kube-proxy's words."""
    subject, note = ObjectKey("", node), "nftproxy is starting"
    return Occurrence(subject, "Starting", "StartKubeProxy", note, Code.STARTING, is_warning=False)
