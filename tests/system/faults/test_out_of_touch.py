"""An agent that hears of no changes says so in every answer, although its rules serve."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.apiserver.faults import Fault, Reset, Respond
from nftproxy_conformance.lab import Origin, endpoint

from nftproxy.commands.output import rfc3339
from tests.system.faults.bench import PLURALS, Bench, pod, vip

pytestmark = pytest.mark.slow

AGENT = "tests.system.faults.hasty"

AGE = 'nftproxy_last_word_age_seconds{resource="endpointslices"}'
DROP = """
table inet firewall {
  chain input { type filter hook input priority 0; tcp dport %d drop; tcp sport %d drop; }
}
"""

Harm = Callable[[Bench], AbstractContextManager[None]]


@contextmanager
def refused(bench: Bench) -> Iterator[None]:
    """Nobody listens at the API server's address."""
    bench.server.stop()
    yield
    bench.server.start()


@contextmanager
def dropped(bench: Bench) -> Iterator[None]:
    """A firewall drops all packets to the API server."""
    bench.lab.node.run(["nft", "-f", "-"], DROP % (bench.server.port, bench.server.port))
    yield
    bench.lab.node.run(["nft", "delete", "table", "inet", "firewall"])


def answered(code: int) -> Harm:
    """The API server answers requests for EndpointSlices with an error."""

    @contextmanager
    def harm(bench: Bench) -> Iterator[None]:
        bench.server.faults.add(
            Fault(Respond(code, "go away"), resource="endpointslices", count=None),
            Fault(Reset(), verb="watch", resource="endpointslices"),
        )
        yield
        bench.server.faults.clear()

    return harm


HARM: dict[str, tuple[Harm, str]] = {
    "dropped": (dropped, "no connection to {host} within 2 s"),
    "refused": (refused, "no connection to {host}: Connection refused"),
    "401": (answered(401), "401 Unauthorized: 'go away'"),
    "403": (answered(403), "403 Forbidden: 'go away'"),
}


def out_of_touch(bench: Bench) -> set[str]:
    """Return the resources that the agent's warning names."""
    warnings = json.loads(bench.healthz().body).get("warnings", ())
    return PLURALS & {word for each in warnings if each.startswith("NFT509") for word in re.findall(r"\w+", each)}


@pytest.mark.parametrize(("harm", "reason"), HARM.values(), ids=HARM.keys())
def test_an_agent_without_the_api(bench: Bench, harm: Harm, reason: str) -> None:
    """Every answer has the caveat with the reason while the API is away, and no answer has it afterwards."""
    reason = reason.format(host=f"127.0.0.1:{bench.server.port}")
    warning = "NFT509: no changes of "
    began = time.time()
    with harm(bench):
        bench.wait_until(lambda: bench.command("status").status == 3)
        bench.wait_until(lambda: "endpointslices" in out_of_touch(bench) and reason in bench.command("status").out)
        status = bench.command("status")
        assert "healthy, BUT OUT OF TOUCH with the cluster; node" in status.out
        agent = json.loads(bench.command("status", "-o", "json").out)["agent"]
        assert agent["isHealthy"]
        assert all(family["asOf"] < rfc3339(began + 60) for family in agent["families"])
        heard = {watch["resource"]: watch["lastHeard"] for watch in agent["watches"]}
        assert {family["asOf"] for family in agent["families"]} == {min(heard.values())}

        explained = bench.command("explain", f"{vip(3)}:80")
        assert explained.status == 0
        assert "  NFT509: this may be out of date: no changes of " in explained.out.splitlines()[1]
        listed = bench.command("list", "services", "-A")
        assert listed.status == 0
        assert listed.err.startswith("caveat: NFT509: this may be out of date: no changes of ")
        assert "NFT509" in json.loads(bench.command("list", "services", "-A", "-o", "json").out)["caveat"]
        assert "NFT509" in json.loads(bench.command("top", "-o", "json").out)["caveat"]

        reply = bench.healthz()
        assert reply.status == 200
        assert [each.startswith(warning) for each in json.loads(reply.body)["warnings"]].count(True) == 1
        assert bench.metric(AGE) >= 0.5
        assert bench.lab.connect(Origin.POD, vip(3), 80) == endpoint(pod(3), 8080), "the rules serve"
    bench.wait_until(lambda: bench.command("status").status == 0)
    bench.wait_until_right()
    assert "warnings" not in json.loads(bench.healthz().body)
    assert "NFT509" not in bench.command("explain", f"{vip(3)}:80").out
    assert bench.command("list", "services", "-A").err == ""


def test_an_outage_is_few_lines_of_the_log(bench: Bench, server: ApiServer) -> None:
    """That nobody listens at the API server's address is logged once for all resources, and so is its return."""
    before, began = len(bench.log()), time.monotonic()
    server.stop()
    bench.wait_until(lambda: out_of_touch(bench) == PLURALS)
    assert bench.metric('nftproxy_faults{code="NFT509"}') == 1
    with bench.logging("the API server answers again, after "):
        server.start()
    minutes = int((time.monotonic() - began) / 60)
    # While the server stops, it ends its connections one by one, and still answers on those that are left.
    ends = bench.log().count("the API server answers again, after ", before)
    assert 1 <= len(re.findall("NFT501: ", bench.log()[before:])) <= ends + minutes, bench.log()[before:]
