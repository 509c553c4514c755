"""Incidents: an operator's command names the cause, and says nothing false, on a real kernel with a real agent.

rows.py, night_rows.py, partial_rows.py, place_rows.py, scarce_rows.py and stress_rows.py have them, README.md
the table.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from nftproxy_conformance.lab import Origin, endpoint, obstacle

from tests.support.command import Done, nftproxy
from tests.support.processes import CHECKOUT
from tests.support.waiting import wait_until
from tests.system.faults.bench import Bench, pod, vip
from tests.system.incidents import rows
from tests.system.incidents.night_rows import NIGHT, NODE_CIDR
from tests.system.incidents.partial_rows import PARTIAL
from tests.system.incidents.place_rows import PLACE
from tests.system.incidents.rows import Incident
from tests.system.incidents.scarce_rows import SCARCE
from tests.system.incidents.stress_rows import STRESS

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())

INCIDENTS = [*rows.INCIDENTS, *NIGHT, *PARTIAL, *PLACE, *STRESS, *SCARCE]
PAGE = CHECKOUT / "tests/system/incidents/README.md"
ROW = re.compile(r"^\| (?P<symptom>[^|`]+) \| `(?P<command>[^`|]+)` \| (?P<cause>`[^|]+`) \|$", re.MULTILINE)
KINDS = ("Node", "Service", "EndpointSlice", "ServiceCIDR")
LEAST = 100
"""The incidents that there must be at least."""
OF_A_PART = {
    "IPv6 alone isn't forwarded",
    "rules of IPv6 are gone, no agent",
    "one map is empty, no agent",
    "a firewall drops IPv6 alone",
    "a firewall drops UDP alone",
    "a firewall rejects the node's own",
    "API answers 403 for Nodes alone",
    "API answers 429 for Services alone",
    "API answers nonsense for Services",
    "a routing rule loses one range",
    "one port of two has no endpoint",
    "one family has no endpoint",
    "kernel is slow",
    "clients of a limit are too many",
    "clients of session affinity are too many",
    "log is on a full disk",
    "agent has five per cent of a CPU",
    "one thread hangs",
    "fast path is refused",
    "connections can't be counted",
}
"""The incidents in which a part fails, and the rest works."""


def test_the_page_has_the_incidents() -> None:
    """The page's table has every incident, with the command and the first words that name the cause."""
    rows = list(ROW.finditer(PAGE.read_text()))
    assert [(each["symptom"], each["command"]) for each in rows] == [(each.symptom, each.command) for each in INCIDENTS]
    for row, incident in zip(rows, INCIDENTS, strict=True):
        causes = tuple(re.findall("`([^`]+)`", row["cause"]))
        assert causes == incident.cause[: len(causes)], incident.symptom
    assert len({each.symptom for each in INCIDENTS}) == len(INCIDENTS) >= LEAST
    assert {each.symptom for each in INCIDENTS} > OF_A_PART
    assert f"In {len(OF_A_PART)} of the {len(INCIDENTS)} rows" in PAGE.read_text()
    assert statistics.median(each.commands for each in INCIDENTS) == 1


@pytest.mark.slow
def test_services_are_served_on_a_node_without_a_pod_range(bench: Bench) -> None:
    """With NodeCIDR and a Node without podCIDR, `list` says that a Service is served, and packets reach its pod."""
    bench.server.put(*rows.FINE)
    with NODE_CIDR(bench):
        bench.wait_until(lambda: "has no podCIDR" in bench.command("status").out)
        listed = bench.command("list", "services", "s3", "-n", "shop", "-o", "json")
        assert [each["state"] for each in json.loads(listed.out)["items"]] == ["Served"]
        for origin in (Origin.POD, Origin.NODE, Origin.REMOTE_POD):
            assert bench.lab.connect(origin, vip(3), 80) == endpoint(pod(3), 8080)


def _selection() -> Iterator[object]:
    """Yield the incidents.  Dear incidents are slow.  Of the others, the first of each command is not."""
    commands = set[str]()
    for incident in INCIDENTS:
        kind = incident.command.split()[0]
        marks = [pytest.mark.slow] * (incident.is_dear or kind in commands)
        commands.update([] if incident.is_dear else [kind])
        yield pytest.param(incident, id=incident.symptom, marks=marks)


@pytest.mark.parametrize("incident", list(_selection()))
def test_the_command_names_the_cause(bench: Bench, incident: Incident, tmp_path: Path) -> None:
    """The command names the cause, has the exit status of its kind, and says nothing that is false."""
    bench.server.put(*incident.objects)
    bench.wait_until_right()
    with incident.harm(bench):
        answer = _last_answer(bench, incident, tmp_path)
        differences = "" if incident.is_mute else _verdicts_that_differ(bench)
    text = _text(answer)
    assert ([each for each in incident.cause if each not in text], answer.status) == ([], incident.status), text
    assert [each for each in incident.never if each in text] == [], text
    assert differences == ""


def _verdicts_that_differ(bench: Bench) -> str:
    """Where `status`, /healthz and the metrics disagree about the node, "" once they agree."""
    found = [""]

    def agree() -> bool:
        report = json.loads(bench.command("status", "-o", "json").out)
        if report["agent"] is None:
            found[0] = "" if not report["isHealthy"] else "no agent, but healthy"
            return not found[0]
        answer = bench.healthz()
        well = report["agent"]["isHealthy"] and report["agent"]["isEligible"]
        metric = bench.metric('nftproxy_healthy{path="healthz"}')
        verdicts = (well, not report["agent"]["whyNot"], answer.status == 200, metric == 1.0)
        found[0] = "" if len(set(verdicts)) == 1 else f"status, its reasons, /healthz, metrics: {verdicts}"
        return not found[0]

    with contextlib.suppress(AssertionError):
        wait_until(agree, pause=0.1)
    return found[0]


def _last_answer(bench: Bench, incident: Incident, directory: Path) -> Done:
    """The first answer that names the cause, or the last answer.  Some causes take the agent a moment."""
    answers = [_answer(bench, incident.command, directory)]

    def names_it() -> bool:
        text = _text(answers[-1])
        if answers[-1].status == incident.status and all(each in text for each in incident.cause):
            return True
        answers.append(_answer(bench, incident.command, directory))
        return False

    with contextlib.suppress(AssertionError):  # the damage is undone before the test fails
        wait_until(names_it, pause=0.1)
    return answers[-1]


def _text(done: Done) -> str:
    """The output of a command, with single spaces, so that columns may be of any width."""
    return " ".join(f"{done.out} {done.err}".split())


def _answer(bench: Bench, command: str, directory: Path) -> Done:
    """Run a command on the node, as an operator there."""
    program, *words = shlex.split(command)
    if program == "curl":
        return Done(0, bench.ask("/metrics", 10249).body.decode(), "")
    if "cluster.yaml" in words:
        items = [each for kind in KINDS for each in bench.server.objects(kind)]
        (directory / "cluster.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    files = {"cluster.yaml": str(directory / "cluster.yaml"), "config.yaml": str(bench.config_map.path)}
    given = [files.get(each, each) for each in (program, *words)]
    if "--config" not in given:
        return bench.command(*given)
    kubeconfig = ["--kubeconfig", str(bench.kubeconfig)] if program == "doctor" else []
    return bench.lab.node.call(lambda: nftproxy(*given, *kubeconfig))
