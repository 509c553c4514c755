"""Health is the age of waiting changes, and the answers are kube-proxy's, field for field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nftproxy.agent.reporting.health import (
    DELETION_TAINT,
    FamilyStatus,
    Health,
    HealthStatus,
    Moment,
    healthz,
    livez,
    why_ineligible,
)
from nftproxy.model.addresses import Family
from nftproxy.model.codes import Code
from tests.support.factories import IPV4, IPV6, node

PERIOD = 30.0
NOON = 1_714_564_800.0  # 2024-05-01T12:00:00Z


def at(seconds: float) -> Moment:
    """Some seconds after noon, with a steady clock that counts from elsewhere."""
    return Moment(steady=1000 + seconds, wall=NOON + seconds)


def healthy(health: Health, seconds: float) -> dict[Family, bool]:
    """Which families are healthy at a time, as far as they are heard of."""
    return {family: status.is_healthy for family, status in health.status(at(seconds)).families.items()}


# ---- conditions of health --------------------------------------------------------------------------------------------


def loaded(*families: Family) -> Health:
    """The health of a proxy that has loaded all rules a while ago."""
    health = Health(PERIOD, families or Family)
    health.waits_for([], at(-100))
    health.taken()
    health.applied(at(-100), families or Family)
    return health


def listed() -> Health:
    """The health of a proxy that knows the whole cluster, and has loaded nothing yet."""
    health = Health(PERIOD)
    health.waits_for([], at(0))
    return health


def test_a_proxy_that_has_just_started() -> None:
    """Before anything has come a proxy is alive, but not healthy, and has nothing to say of any family."""
    status = Health(PERIOD).status(at(500))
    families = ("the first load of IPv4", "the first load of IPv6")
    assert status == HealthStatus(at(500), {}, ("the first listing of all sources", *families))
    assert (status.is_healthy, status.is_alive) == (False, True)


def test_missing_sources_and_loads_are_named() -> None:
    """The proxy waits for the sources by name, then for each family's first load, and only then is it healthy."""
    health = Health(PERIOD)
    health.waits_for(["services", "nodes"], at(0))
    assert health.status(at(1)).waiting[:2] == ("the first listing of services", "the first listing of nodes")
    health.waits_for([], at(0))
    health.applied(at(1), [IPV4])
    assert health.status(at(2)).waiting == ("the first load of IPv6",)
    assert not health.status(at(2)).is_healthy
    health.applied(at(3), [IPV6])
    assert health.status(at(4)).waiting == ()
    assert health.status(at(4)).is_healthy


def test_another_agent_is_waited_for_first() -> None:
    """While another agent has the lock, health names it, and the proxy is alive but not healthy."""
    health = loaded()
    health.waits_for_agent("another nftproxy (process 7)")
    status = health.status(at(500))
    answer = healthz(status)
    assert json.loads(answer.body)["waitingFor"] == ["the end of another nftproxy (process 7)"]
    assert (answer.status, livez(status).status) == (503, 200)
    health.waits_for_agent("")
    assert health.status(at(501)).is_healthy


def test_no_change_is_late_before_everything_was_listed() -> None:
    """A restart wouldn't make the API answer, so the first load's time runs from the end of the listing."""
    health = Health(PERIOD)
    health.queued(at(0))
    assert health.status(at(1000)).is_alive
    health.waits_for([], at(1000))
    assert health.status(at(1059)).is_alive
    assert not health.status(at(1060)).is_alive


@pytest.mark.parametrize(("one", "other"), [(IPV4, IPV6), (IPV6, IPV4)])
def test_one_family_is_enough_to_be_alive(one: Family, other: Family) -> None:
    """A restart can't repair a family that the kernel refuses, and would delay the other family."""
    health = loaded()
    health.queued(at(0))
    health.taken()
    health.applied(at(1), [one])
    status = health.status(at(100))
    assert (status.is_healthy, status.is_alive) == (False, True)
    assert (status.serves([one]), status.serves([other]), status.serves(Family)) == (True, False, False)
    assert livez(status).status == 200
    assert healthz(status).status == 503
    health.queued(at(100))
    assert not health.status(at(200)).is_alive
    assert livez(health.status(at(200))).status == 503


def test_a_family_that_was_never_loaded_is_not_served() -> None:
    """However short it has been waiting."""
    health = Health(PERIOD)
    health.waits_for([], at(0))
    health.applied(at(0), [IPV4])
    assert (health.status(at(1)).serves([IPV4]), health.status(at(1)).serves([IPV6])) == (True, False)


def test_silence_is_health() -> None:
    """However long nothing has come, a proxy that has applied all is healthy."""
    health = listed()
    health.queued(at(0))
    health.taken()
    health.applied(at(1), Family)
    assert health.status(at(10**6)).families == dict.fromkeys(Family, FamilyStatus(NOON + 1, is_healthy=True))


@pytest.mark.parametrize(("seconds", "is_healthy"), [(59.9, True), (60.0, False), (10**6, False)])
def test_a_change_may_wait_two_sync_periods(seconds: float, is_healthy: bool) -> None:
    """A change that has waited for two sync periods makes the proxy unhealthy, not sooner."""
    health = loaded()
    health.queued(at(0))
    assert healthy(health, seconds) == dict.fromkeys(Family, is_healthy)
    assert health.status(at(seconds)).is_healthy is is_healthy


def test_the_oldest_change_counts() -> None:
    """Changes that follow do not make the first one younger, nor does trying in vain to apply it."""
    health = listed()
    for seconds in range(0, 60, 10):
        health.queued(at(seconds))
        health.taken()
    assert healthy(health, 60) == dict.fromkeys(Family, False)


def test_applying_makes_healthy_again() -> None:
    """Once the change is in the kernel the proxy is healthy, however late that was."""
    health = listed()
    health.queued(at(0))
    health.taken()
    health.applied(at(300), Family)
    assert healthy(health, 301) == dict.fromkeys(Family, True)


def test_a_change_that_came_while_others_were_applied() -> None:
    """A change that comes while earlier changes are applied stays pending, since the time it came."""
    health = listed()
    health.queued(at(0))
    health.taken()
    health.queued(at(10))
    health.queued(at(15))
    health.applied(at(20), Family)
    assert (healthy(health, 69), healthy(health, 70)) == (dict.fromkeys(Family, True), dict.fromkeys(Family, False))


def test_one_family_alone() -> None:
    """A family whose rules follow is healthy while the other's do not, and the proxy as a whole is not."""
    health = listed()
    health.queued(at(0))
    health.taken()
    health.applied(at(1), [IPV6])
    assert health.status(at(60)).families == {
        IPV4: FamilyStatus(None, is_healthy=False, waiting=60.0),
        IPV6: FamilyStatus(NOON + 1, is_healthy=True),
    }
    assert not health.status(at(60)).is_healthy


def test_a_proxy_of_one_family() -> None:
    """A family that is not served is not heard of."""
    health = loaded(IPV4)
    health.queued(at(0))
    health.applied(at(1), [IPV4])
    assert list(health.status(at(2)).families) == [IPV4]


def test_a_clock_that_is_set() -> None:
    """Setting the machine's clock makes nothing wait longer or shorter."""
    health = loaded()
    health.queued(Moment(steady=1000, wall=NOON))
    assert health.status(Moment(steady=1059, wall=NOON + 10**6)).is_healthy
    assert not health.status(Moment(steady=1060, wall=0)).is_healthy


# ---- /healthz and /livez ---------------------------------------------------------------------------------------------

GOOD = HealthStatus(at(50), {IPV4: FamilyStatus(NOON + 1.5, True), IPV6: FamilyStatus(NOON + 40, True)})
BAD = HealthStatus(at(50), {IPV4: FamilyStatus(NOON + 1.5, True), IPV6: FamilyStatus(NOON + 40, False, 70.2)})
LATE = "IPv6: a change waits for 70 s to reach the kernel"
REMOVED = "the Node node-a is being deleted"
FAMILIES = {
    "IPv4": {"lastUpdated": "2024-05-01T12:00:01.500000Z", "healthy": True},
    "IPv6": {"lastUpdated": "2024-05-01T12:00:40Z", "healthy": True},
}
HALF = FAMILIES | {"IPv6": {"lastUpdated": "2024-05-01T12:00:40Z", "healthy": False}}
NOW, THEN = "2024-05-01T12:00:50Z", "2024-05-01T12:00:40Z"


@pytest.mark.parametrize(
    ("status", "node_eligible", "code", "body"),
    [
        (GOOD, True, 200, {"lastUpdated": NOW, "healthy": True, "status": FAMILIES}),
        (GOOD, False, 503, {"lastUpdated": THEN, "healthy": True, "status": FAMILIES, "whyNot": [REMOVED]}),
        (BAD, True, 503, {"lastUpdated": THEN, "healthy": False, "status": HALF, "whyNot": [LATE]}),
        (BAD, False, 503, {"lastUpdated": THEN, "healthy": False, "status": HALF, "whyNot": [LATE, REMOVED]}),
        (HealthStatus(at(50), {}), True, 200, {"lastUpdated": NOW, "healthy": True}),
        (
            HealthStatus(at(50), {}),
            False,
            503,
            {"lastUpdated": "0001-01-01T00:00:00Z", "healthy": True, "whyNot": [REMOVED]},
        ),
    ],
)
def test_healthz(status: HealthStatus, node_eligible: bool, code: int, body: dict[str, Any]) -> None:
    """200 if the proxy is healthy and the node eligible, else 503 with reasons.  `healthy` is the proxy's alone."""
    answer = healthz(status._replace(why_ineligible="" if node_eligible else REMOVED))
    assert answer.status == code
    assert answer.headers == {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"}
    assert json.loads(answer.body) == body | {"currentTime": NOW, "nodeEligible": node_eligible}


@pytest.mark.parametrize(
    ("status", "code", "body"),
    [
        (GOOD, 200, {"lastUpdated": NOW, "healthy": True, "status": FAMILIES}),
        (BAD, 200, {"lastUpdated": NOW, "healthy": False, "status": HALF}),
        (HealthStatus(at(50), {}), 200, {"lastUpdated": NOW, "healthy": True}),
    ],
)
def test_livez(status: HealthStatus, code: int, body: dict[str, Any]) -> None:
    """200 if a family's rules follow, without a word of the node."""
    answer = livez(status)
    assert answer.status == code
    assert answer.headers == {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"}
    assert json.loads(answer.body) == body | {"currentTime": NOW}


def test_the_order_of_fields() -> None:
    """Fields come in kube-proxy's order, for people and for scripts that cut text."""
    order = ["lastUpdated", "currentTime", "nodeEligible", "healthy", "status"]
    assert list(json.loads(healthz(GOOD).body)) == order
    assert list(json.loads(livez(GOOD).body)) == [field for field in order if field != "nodeEligible"]


def test_answers_name_the_missing_source() -> None:
    """Both answers name the missing source after kube-proxy's fields: the node isn't ready, but needs no restart."""
    status = HealthStatus(at(50), {}, ("the first listing of services",))
    for answer, code in ((healthz(status), 503), (livez(status), 200)):
        assert answer.status == code
        body = json.loads(answer.body)
        assert (body["healthy"], body["waitingFor"]) == (False, ["the first listing of services"])


def test_answers_have_the_warnings() -> None:
    """Warnings are in both answers, with codes, and change neither status nor health."""
    health = Health(30.0)
    health.waits_for((), Moment(0, 0))
    health.applied(Moment(0, 0), Family)
    health.set_warnings(Code.CONFIGURATION_NOT_APPLIED, ["is bad"])
    health.set_warnings(Code.OTHER_PROXY, ["one", "two"])
    health.set_warnings(Code.CONFIGURATION_NOT_APPLIED, ["is worse"])
    status = health.status(Moment(1, 1))
    for answer in (livez(status), healthz(status)):
        assert answer.status == 200
        assert json.loads(answer.body)["warnings"] == ["NFT105: is worse", "NFT007: one", "NFT007: two"]
    health.set_warnings(Code.CONFIGURATION_NOT_APPLIED, [])
    health.set_warnings(Code.OTHER_PROXY, [])
    assert "warnings" not in json.loads(livez(health.status(Moment(2, 2))).body)


def test_a_family_that_never_had_rules() -> None:
    """A family that has failed from the start tells the zero time, and the proxy is not healthy."""
    body = json.loads(livez(HealthStatus(at(60), {IPV4: FamilyStatus(None, is_healthy=False)})).body)
    assert body["status"] == {"IPv4": {"lastUpdated": "0001-01-01T00:00:00Z", "healthy": False}}
    assert body["healthy"] is False


@pytest.mark.parametrize(
    ("tweaks", "eligible"),
    [
        ({}, True),
        ({"is_deleted": True}, False),
        ({"taints": ("ToBeDeletedByClusterAutoscaler",)}, False),
        ({"taints": ("node.kubernetes.io/unschedulable", DELETION_TAINT)}, False),
        ({"taints": ("node.kubernetes.io/unschedulable",)}, True),
    ],
)
def test_eligibility(tweaks: dict[str, Any], eligible: bool) -> None:
    """A node that is being deleted, or that the autoscaler is about to remove, may not have new traffic."""
    assert (why_ineligible(node(**tweaks)) == "") is eligible
