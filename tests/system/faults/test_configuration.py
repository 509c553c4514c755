"""Changes of the configuration: the agent adopts a good configuration, and reports a bad configuration."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
import yaml
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import UNTOUCHED, Origin, Outcome, Probe, endpoint

from tests.support.background import repeating
from tests.system.faults.bench import Bench, endpoints, pod, service, vip
from tests.system.faults.test_life import LOADED, start
from tests.system.packets.manifests import labelled

pytestmark = pytest.mark.slow

ANEW = "the configuration has changed: the agent restarts, and its rules stay in force"
REJECTED = "nftproxy_configuration_rejected"
ARGUMENTS = ["--api-server", "https://127.0.0.1:1"]
"""An address that is never needed, with the scheme of the address in the kubeconfig."""
CANARY_PORT = 10349
PATIENCE = 60.0
"""Seconds for a process to start and load its rules on a busy machine.  An idle machine takes two."""


def configure(bench: Bench, **fields: object) -> None:
    """Update the agent's configuration as kubelet does, to the first configuration with these fields."""
    bench.config_map.update(yaml.safe_dump(bench.configuration | fields))


def in_force(bench: Bench) -> dict[str, object]:
    """The agent's configuration in force from /configz, once the usual port or a canary's port answers."""
    answers: list[dict[str, object]] = []

    def look() -> bool:
        for port in (10249, CANARY_PORT):
            with contextlib.suppress(OSError):
                answers.extend(json.loads(bench.ask("/configz", port).body).values())
        return bool(answers)

    bench.wait_until(look, PATIENCE)
    return answers[0]


@pytest.fixture
def configured(bench: Bench) -> Iterator[Bench]:
    """An agent whose configuration is restored at the end and in force, with no rejection left."""
    usual = in_force(bench)
    yield bench
    if in_force(bench) == usual:
        configure(bench)
        bench.wait_until(lambda: bench.metric(REJECTED) == 0, PATIENCE)
    else:
        with bench.logging(LOADED):  # logged after the new agent answers and its rules are right
            configure(bench)
    bench.wait_until_right(PATIENCE)


def test_a_good_configuration_is_taken_over_without_a_connection_lost(configured: Bench) -> None:
    """The agent restarts in its own process with the new configuration, and no client's connection fails."""
    bench = configured
    outcomes: list[Outcome] = []

    def connect() -> None:
        outcomes.extend(bench.lab.connect_many([Probe(Origin.POD, vip(number), 80) for number in range(1, 6)]))

    assert in_force(bench)["oomScoreAdj"] == -999
    (established,) = bench.lab.establish([bench.lab.connect(Origin.POD, vip(1), 80)])
    process = bench.process_id
    with repeating(connect):
        with bench.logging(LOADED):
            configure(bench, oomScoreAdj=-998)
        bench.wait_until_right(PATIENCE)
        assert f"{ANEW}: oomScoreAdj from -999 to -998\n" in bench.log()
    assert in_force(bench)["oomScoreAdj"] == -998
    assert bench.process_id == process
    assert ANEW in bench.log()
    assert bench.lab.next_packets([established]) == [established]
    assert len(outcomes) > 100
    assert set(outcomes) == {endpoint(pod(number), 8080) for number in range(1, 6)}


def test_a_bad_configuration_changes_nothing_and_is_reported(configured: Bench, server: ApiServer) -> None:
    """A bad configuration is reported by log, Event, metric and health, and the old configuration stays in force."""
    bench = configured
    loads, before = bench.log().count(LOADED), in_force(bench)
    configure(bench, oomScoreAdj=5000, nodePortAddresses=["x"])
    bench.wait_until(lambda: bench.metric(REJECTED) == 1, PATIENCE)
    where = f"{bench.config_map.path}: KubeProxyConfiguration"
    faults = [
        f"NFT102: {where}: nodePortAddresses[0]: 'x' is not a CIDR, nor primary, localhost or all",
        f"NFT102: {where}: oomScoreAdj: 5000 is not from -1000 to 1000",
    ]
    health = bench.healthz()
    assert health.status == 200
    assert json.loads(health.body)["warnings"] == ["NFT105: " + "\n".join(faults)]
    for fault in faults:
        assert fault in bench.log()
    bench.wait_until(
        lambda: any(each["reason"] == "InvalidConfiguration" for each in server.objects("Event")), PATIENCE
    )
    (event,) = [each for each in server.objects("Event") if each["reason"] == "InvalidConfiguration"]
    assert event["regarding"]["kind"] == "Node"
    assert event["type"] == "Warning"
    assert faults[0] in event["note"]
    assert in_force(bench) == before
    configure(bench)
    bench.wait_until(lambda: bench.metric(REJECTED) == 0, PATIENCE)
    assert "warnings" not in json.loads(bench.healthz().body)
    assert bench.log().count(LOADED) == loads


def test_a_kubeconfig_that_can_not_be_read_is_a_bad_configuration(configured: Bench) -> None:
    """A configuration whose kubeconfig can't be read is rejected before the agent restarts, and its rules stay."""
    bench = configured
    configure(bench, clientConnection={"kubeconfig": "/none"})
    bench.wait_until(lambda: bench.metric(REJECTED) == 1, PATIENCE)
    assert "/none: No such file or directory" in json.loads(bench.healthz().body)["warnings"][0]
    assert bench.is_right()


def test_a_kubeconfig_that_contradicts_the_arguments_is_a_bad_configuration(configured: Bench) -> None:
    """A configuration is rejected if the restarted agent couldn't use its kubeconfig with --api-server."""
    bench = configured
    other = bench.kubeconfig.with_name("without-tls")
    other.write_text(bench.kubeconfig.read_text().replace("https://", "http://"))
    configure(bench, clientConnection={"kubeconfig": str(other)})
    bench.wait_until(lambda: bench.metric(REJECTED) == 1, PATIENCE)
    assert "--api-server: 'https://127.0.0.1:1' is not a URL like http://" in bench.healthz().body.decode()
    assert bench.is_right()


def test_a_bad_configuration_after_a_good_one_does_not_end_the_agent(configured: Bench) -> None:
    """A configuration that turns bad while the agent starts anew is reported, and the good one is in force."""
    bench = configured
    process = bench.process_id
    with bench.logging(LOADED):
        with bench.logging(ANEW):
            configure(bench, oomScoreAdj=-997)
        configure(bench, oomScoreAdj=5000)
    bench.wait_until(lambda: bench.metric(REJECTED) == 1, PATIENCE)
    assert in_force(bench)["oomScoreAdj"] == -997
    assert bench.process_id == process
    assert bench.is_right()


def test_the_log_can_be_made_to_have_each_request(configured: Bench) -> None:
    """With verbosity 6 and format json, each request to the API is logged, and each log line is a JSON object."""
    bench = configured
    assert "HTTP Request" not in bench.log()
    size = len(bench.log())
    with bench.logging(LOADED):
        configure(bench, logging={"format": "json", "verbosity": 6})
    bench.wait_until_right(PATIENCE)
    lines = [json.loads(line) for line in bench.log()[size:].splitlines() if line.startswith("{")]
    assert all({"ts", "level", "msg"} <= line.keys() for line in lines)
    assert any(line["msg"].startswith("HTTP Request: GET") and "services" in line["msg"] for line in lines)
    assert any(line["level"] == "debug" and line["msg"].startswith("applied") and line["bytes"] for line in lines)


def test_it_becomes_a_canary_beside_another_proxy(configured: Bench, server: ApiServer) -> None:
    """With a serviceProxyName the agent watches and serves only the objects with this label, beside another proxy."""
    bench = configured
    bench.lab.node.run(["nft", "add", "table", "ip", "kube-proxy"])
    label = "service.kubernetes.io/service-proxy-name"
    labels = {label.replace("/", "__").replace("-", "_"): "canary"}
    labelled_objects = [labelled(each, **labels) for each in (service(1), endpoints(1))]
    server.put(*labelled_objects)
    ports = {"healthzBindAddress": "0.0.0.0:10356", "metricsBindAddress": f"127.0.0.1:{CANARY_PORT}"}
    size = len(bench.log())
    bench.count_anew()
    try:
        with bench.logging(LOADED):
            configure(bench, nftproxy={"serviceProxyName": "canary"}, **ports)
        assert outcomes(bench) == {1: endpoint(pod(1), 8080)} | dict.fromkeys(range(2, 6), UNTOUCHED)
        server.put(labelled(service(2), **labels), labelled(endpoints(2), **labels), service(1), endpoints(1))
        wanted = {number: endpoint(pod(2), 8080) if number == 2 else UNTOUCHED for number in range(1, 6)}
        bench.wait_until(lambda: outcomes(bench) == wanted, PATIENCE)
        assert b"warnings" not in bench.ask("/healthz", 10356).body
        new = bench.log()[size:]
        assert f"serving just the Services with the label {label}=canary" in new
        assert "kube-proxy serves Services on this node" not in new
        asked = [each for each in bench.requests() if f"{label}=canary" in each.query.get("labelSelector", "")]
        assert {(each.resource, each.verb) for each in asked} == {
            (plural, verb) for plural in ("services", "endpointslices") for verb in ("list", "watch")
        }
    finally:
        bench.lab.node.run(["nft", "delete", "table", "ip", "kube-proxy"])
        server.put(*(each for number in (1, 2) for each in (service(number), endpoints(number))))


def outcomes(bench: Bench) -> dict[int, Outcome]:
    """The outcome of a connection to each of the five Services, by their numbers."""
    found = bench.lab.connect_many([Probe(Origin.POD, vip(number), 80) for number in range(1, 6)])
    return dict(enumerate(found, 1))


def test_sigterm_is_heard_while_it_starts_anew(configured: Bench) -> None:
    """An agent that gets SIGTERM while it restarts with a new configuration ends, and doesn't start again."""
    bench = configured
    for score in (-990, -991, -992):
        with bench.logging(ANEW):
            configure(bench, oomScoreAdj=score)
        bench.stop(may_be_starting=True)
        start(bench)
