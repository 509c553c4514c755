"""How old the agent's knowledge of the cluster is, from the activity of each resource of the API.

The rules are as of the oldest last word among the resources: an EndpointSlice that can't be watched makes them old,
however many Services change.  The API server sends a bookmark each minute, so a minute's age is no fault.  A resource
counts as out of touch once its requests have failed for `GRACE` seconds, and in any case `LONGEST_SILENCE` after the
server's last word.  Time comes in as a value of the steady clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nftproxy.model.codes import Code
from nftproxy.sources.api_client import ResourceActivity

GRACE = 5.0
"""Seconds for which requests may fail, so that a connection that breaks and is made again is no warning."""
LONGEST_SILENCE = 120.0
"""Seconds without a word after which a resource is out of touch, whatever the reason, as if a listing takes long.
The server sends a bookmark each minute, and a watch ends after 90 s of silence (`Timeouts.silence`)."""
LONGEST_PROBLEM = 300
"""Limit of characters of a problem: the server chooses its own words."""


def followed(activities: Iterable[ResourceActivity]) -> list[ResourceActivity]:
    """Return the resources that the rules are made of: all that the cluster has."""
    return [each for each in activities if not each.is_absent]


def out_of_touch(activities: Iterable[ResourceActivity], now: float) -> list[ResourceActivity]:
    """Return the resources whose changes don't reach the agent."""
    return [each for each in followed(activities) if _fails(each, now) or _is_silent(each, now)]


def _fails(each: ResourceActivity, now: float) -> bool:
    return each.failing_since is not None and now - each.failing_since >= GRACE


def _is_silent(each: ResourceActivity, now: float) -> bool:
    return each.last_heard is not None and now - each.last_heard >= LONGEST_SILENCE


def oldest_word(activities: Iterable[ResourceActivity]) -> float | None:
    """Return the time since which every resource has been heard of.  None if the server has never sent one of them."""
    words = [each.last_heard for each in followed(activities)]
    return min((word for word in words if word is not None), default=None) if None not in words else None


def ages(activities: Iterable[ResourceActivity], now: float, started: float) -> Iterator[tuple[str, float]]:
    """Yield each resource with the seconds since the server last sent something about it, else since the start."""
    for each in followed(activities):
        yield each.resource, max(0.0, now - (started if each.last_heard is None else each.last_heard))


def warnings(activities: Iterable[ResourceActivity], now: float) -> Iterator[str]:
    """Yield a single line for all resources that are out of touch.  Resources with the same problem share its words."""
    groups: dict[str, list[ResourceActivity]] = {}
    for each in out_of_touch(activities, now):
        groups.setdefault(_problem(each, now), []).append(each)
    reached = " have reached this node"
    parts = []
    for problem, lost in groups.items():
        parts.append(f"of {_names(lost)}{reached} for {max(_age(each, now) for each in lost):.0f} s: {problem}")
        reached = ""
    if parts:
        yield f"{Code.OUT_OF_TOUCH}: no changes {'; '.join(parts)}"


def unusable_seconds(activities: Iterable[ResourceActivity], now: float) -> Iterator[tuple[str, float]]:
    """Yield the seconds for which the server has answered with listings that can't be used, 0 if they can be."""
    for each in followed(activities):
        yield each.resource, max(0.0, now - (now if each.unusable_since is None else each.unusable_since))


def unusable(activities: Iterable[ResourceActivity], now: float, patience: float) -> Iterator[str]:
    """Yield the resources for which the server has sent only unusable listings for at least `patience` seconds.

    An API server that is away is no fault of this node, whose rules serve.  A listing that can't be used is.
    """
    for each in followed(activities):
        if each.unusable_since is not None and now - each.unusable_since >= patience:
            yield each.resource


def caveat(activities: Iterable[ResourceActivity], now: float) -> str:
    """Return the line that an answer about the cluster needs while a resource is out of touch, else ""."""
    lost = out_of_touch(activities, now)
    if not lost:
        return ""
    longest = max(lost, key=lambda each: _age(each, now))
    return (
        f"{Code.OUT_OF_TOUCH}: this may be out of date: no changes of {_names(lost)} have reached this node for "
        f"{_age(longest, now):.0f} s ({_problem(longest, now)})"
    )


def _names(lost: Sequence[ResourceActivity]) -> str:
    return " and ".join(filter(None, [", ".join(each.resource for each in lost[:-1]), lost[-1].resource]))


def _problem(each: ResourceActivity, now: float) -> str:
    return each.problem[:LONGEST_PROBLEM] or f"the agent has been {each.what} for {now - each.since:.0f} s"


def _age(each: ResourceActivity, now: float) -> float:
    """Return the seconds since the server's last word, or since the first failure if there was no word."""
    return now - (each.last_heard or each.failing_since or now)
