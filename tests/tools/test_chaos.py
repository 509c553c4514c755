"""Chaos: the seed determines the draws, the allowed outcomes of connections are known, and a run finds violations."""

from __future__ import annotations

import itertools
import os
import signal
import socket
from collections import deque
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import DROPPED, NODE, TCP_RESET, Lab, Origin, Probe, endpoint, obstacle

from nftproxy.api.parse import parse_object
from nftproxy.model.addresses import parse_network
from nftproxy.model.events import Put
from nftproxy.model.objects import EndpointSlice, Service
from nftproxy.model.settings import Config
from tests.support.factories import INSTALLED_KINDS, pipeline
from tests.system.faults.bench import Bench, endpoints, service, vip
from tools.chaos import session, watcher
from tools.chaos.agent import PATIENCE
from tools.chaos.cluster import ANCHORS, CHANGING, Cluster, Histories, node_port
from tools.chaos.faults import FAULTS, ChaosFault, Scene, tenants_objects
from tools.chaos.session import Session, drawn

CONFIG = Config(cluster_cidrs=(parse_network("10.1.0.0/16"),))


def test_the_seed_draws_the_faults() -> None:
    """The same seed has the same faults in the same order, and another seed other faults."""
    first, again, other = (list(itertools.islice(drawn(seed), 100)) for seed in ("a", "a", "b"))
    assert first == again != other


def test_every_fault_has_its_turn() -> None:
    """No fault comes again before all have come, and faults at once are of different groups."""
    seen: list[str] = []
    for names in drawn("a"):
        assert len({FAULTS[name].group for name in names}) == len(names)
        seen += names
        if len(seen) == len(FAULTS):
            break
    assert sorted(seen) == sorted(FAULTS)
    assert set(itertools.islice(drawn("a", ["410"]), 5)) == {("410",)}


def objects_after(seed: str, changes: int) -> list[Any]:
    """Return the Services and slices after some changes, without the fields that the server adds."""
    with ApiServer() as server:
        cluster = Cluster(server, CONFIG, seed)
        cluster.furnish(0.0)
        for now in range(changes):
            cluster.change(float(now + 1))
        found = [each for kind in ("Service", "EndpointSlice") for each in server.objects(kind)]
    return [{"name": each["metadata"]["name"]} | {k: each[k] for k in each if k != "metadata"} for each in found]


def test_the_seed_draws_the_changes() -> None:
    """The same seed has the same objects after the same number of changes, and some objects never change."""
    first, again, other = (objects_after(seed, 120) for seed in ("a", "a", "b"))
    assert first == again != other
    names = {each["name"] for each in first}
    assert {f"s{number}" for number in ANCHORS} < names
    assert {f"s{number}" for number in CHANGING} & names


def test_what_an_object_may_be() -> None:
    """Until the kernel is known to have an object's new state, connections may meet an earlier state."""
    histories = Histories()
    for now, name in ((1.0, "a"), (2.0, "b"), (3.0, "c")):
        histories.note("Service", 7, {"is": name}, now)
    assert histories.between("Service", 7, 0.5, 2.5) == [None, {"is": "a"}, {"is": "b"}]
    histories.settled(2.5)
    assert histories.between("Service", 7, 2.6, 2.9) == [{"is": "b"}]
    assert histories.between("Service", 7, 2.6, 3.5) == [{"is": "b"}, {"is": "c"}]
    assert histories.between("Service", 7, 2.4, 2.6) == [None, {"is": "a"}, {"is": "b"}]
    assert histories.between("Service", 8, 0.0, 9.0) == [None]
    assert histories.latest() == {("Service", 7): {"is": "c"}}


def test_what_a_connection_may_become() -> None:
    """An old Service with new endpoints, or a loss in between, is allowed until all is settled."""
    number = CHANGING[0]
    with ApiServer() as server:
        cluster = Cluster(server, CONFIG, "a")
        note = cluster.histories.note
        note("Service", number, service(number), 1.0)
        note("EndpointSlice", number, endpoints(number, "10.1.1.5"), 1.0)
        asked = Probe(Origin.POD, vip(number), 80, "tcp", "10.1.0.200")
        assert cluster.allowed(number, asked, 0.0, 0.5) == {DROPPED}
        assert cluster.allowed(number, asked, 0.0, 1.5) == {DROPPED, TCP_RESET, endpoint("10.1.1.5", 8080)}
        cluster.histories.settled(2.0)
        assert cluster.allowed(number, asked, 2.1, 2.2) == {endpoint("10.1.1.5", 8080)}
        elsewhere = Probe(Origin.OUTSIDE, "192.168.0.2", node_port(number), "tcp", "198.51.100.7")
        assert cluster.allowed(number, elsewhere, 2.1, 2.2) == {NODE}


class Restoring:
    """A lock for changes.  When it is taken for the second time, the server is restored from a backup."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._backup = server.revision
        self.taken = 0

    def __enter__(self) -> None:
        self.taken += 1
        if self.taken == 2:
            self._server.restart(revision=self._backup)

    def __exit__(self, *_: object) -> None:
        pass


def test_the_hostile_tenants_changes_are_large() -> None:
    """Each change of the hostile tenant is another, is within the limits, and is of thousands of elements."""
    made = pipeline(node=None)
    sizes = []
    for number in range(4):
        given = (parse_object(each, "", [], kind=INSTALLED_KINDS[each["kind"]]) for each in tenants_objects(number))
        change = made.ingest([Put(each) for each in given if isinstance(each, Service | EndpointSlice)])
        sizes.append(change.size().elements)
        assert not made.quarantined
    assert all(each >= 8_000 for each in sizes)


@pytest.mark.parametrize("fault", ["hostile objects", "contested addresses"])
def test_objects_that_a_restore_loses(fault: str) -> None:
    """A server that is restored while objects come and go may have lost the objects that are to go."""
    with ApiServer() as server:
        before = server.objects("Service")
        changing: Any = Restoring(server)
        nobody: Any = None
        FAULTS[fault].strike(Scene(nobody, server, nobody, changing, lambda: None), Random(1))
        assert changing.taken == 2
        assert server.objects("Service") == before


needs_a_lab = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


@needs_a_lab
def test_a_run_without_violations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An agent that is killed while its watches expire costs no connection, and ends with the rules that `render`
    prints.  Asking for its verdicts prints nothing.
    """
    said: list[str] = []
    with Session("test", tmp_path, said.append) as chaos:
        chaos.run(6.0, ["killed", "410"])
    assert chaos.violations == [], "\n".join(said)
    assert chaos.faults.total() >= 1
    assert chaos.traffic.judged >= session.FEWEST
    assert chaos.changes >= 1
    assert capsys.readouterr().err == ""


@needs_a_lab
def test_a_run_finds_connections_that_go_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the rules are damaged behind its back, a run reports each wrong connection as a violation."""
    with Session("test", tmp_path, lambda _: None) as chaos:

        def sabotage(scene: Scene, _rng: Random) -> None:
            with scene.agent.suspended():
                scene.agent.lab.load("flush map ip nftproxy services")
                enough = chaos.traffic.judged + 200
                scene.agent.wait_until(lambda: chaos.traffic.judged >= enough, 60)

        monkeypatch.setattr(session, "FAULTS", {"sabotage": ChaosFault("kernel", sabotage)})
        chaos.run(1.0, ["sabotage"])
    assert chaos.traffic.wrong
    assert any(text.startswith("a connection: Probe(") for text in chaos.violations)


@needs_a_lab
@pytest.mark.parametrize("lies", [True, False])
def test_a_run_finds_a_verdict_that_is_well_while_connections_go_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lies: bool
) -> None:
    """A verdict that stays well beside damage is a violation, and an agent without a verdict is none."""

    def sabotage(scene: Scene, _rng: Random) -> None:
        with scene.agent.suspended():
            scene.harm()
            scene.agent.lab.load("flush map ip nftproxy services")
            enough = chaos.watcher.asked + 20
            scene.agent.wait_until(lambda: chaos.watcher.blind or chaos.watcher.asked >= enough, PATIENCE)

    monkeypatch.setattr(session, "FAULTS", {"sabotage": ChaosFault("kernel", sabotage)})
    monkeypatch.setattr(watcher, "BLIND", 1.0)
    monkeypatch.setattr(watcher, "LATE", PATIENCE if lies else 0.1)
    if lies:
        monkeypatch.setattr(watcher, "says_well", lambda _agent: True)
        monkeypatch.setattr(watcher.Delays, "measure", lambda *_: 0.0)
    with Session("test", tmp_path, lambda _: None) as chaos:
        chaos.run(1.0, ["sabotage"])
    assert any(text.startswith("blind: Probe(") for text in chaos.violations) is lies


def test_how_long_an_agent_was_blind() -> None:
    """An agent was blind if each verdict was well, from before the time that delays extend to after the connection."""

    def since(*samples: tuple[float, bool, float]) -> float | None:
        return watcher.blind_since(deque(watcher.Sample(*each) for each in samples), 10.0, 4.0)

    well = [(1.0, True, 0.0), (5.0, True, 0.0), (7.0, True, 0.0), (11.0, True, 0.0)]
    assert since(*well) == 5.0
    assert since(*well[:3]) is None, "nothing is known after it"
    assert since(*well[2:]) is None, "nothing is known of before it"
    assert since(*well[:2], (7.0, False, 0.0), well[3]) is None
    assert since(*well[:3], (11.0, False, 0.0)) is None
    assert since(*well[:3], (11.0, True, 2.0)) == 1.0
    assert since(*well[:3], (11.0, True, 6.0)) is None


@needs_a_lab
def test_a_run_finds_an_agent_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that ends by itself is a violation."""

    def die(scene: Scene, _rng: Random) -> None:
        os.kill(scene.agent.process_id, signal.SIGKILL)
        scene.agent.wait_until(lambda: scene.agent.has_died)

    monkeypatch.setattr(session, "FAULTS", {"death": ChaosFault("agent", die)})
    with Session("test", tmp_path, lambda _: None) as chaos:
        chaos.run(1.0, ["death"])
    assert [text for text in chaos.violations if text.startswith("death: the agent has ended by itself")]


@needs_a_lab
def test_what_a_run_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run waits until the agent is ready, all chains are filled, and a changed configuration is in force.

    If another wait of a fault fails, this is a violation, and the run goes on.
    """
    seen: list[tuple[bool, bool]] = []

    def look(scene: Scene, _rng: Random) -> None:
        agent = scene.agent
        with scene.changing:
            agent.wait_until_right(PATIENCE)
            agent.kill()
            seen.append((Bench.is_right(agent), agent.is_right()))
            agent.start()
            agent.wait_until_right(PATIENCE)
            with agent.suspended():
                scene.harm()
                agent.lab.load("flush chain ip nftproxy services")
                seen.append((Bench.is_right(agent), agent.is_right()))
        agent.renew_configuration()
        raise AssertionError("in vain")

    monkeypatch.setattr(session, "FAULTS", {"look": ChaosFault("agent", look)})
    with Session("test", tmp_path, lambda _: None) as chaos:
        chaos.run(1.0, ["look"])
        assert "the configuration has changed: the agent restarts" in chaos.agent.log()
    assert seen == [(True, False)] * 2 * chaos.faults.total()
    assert chaos.violations == ["look: in vain"] * chaos.faults.total()


@needs_a_lab
def test_a_server_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections to a stopped API server are refused or time out, until the server is there again."""
    with Lab() as lab, ApiServer(make_socket=lab.node.socket) as server:

        def connect() -> str:
            with lab.node.socket(socket.AF_INET, socket.SOCK_STREAM) as end:
                end.settimeout(0.3)
                try:
                    end.connect(("127.0.0.1", server.port))
                except OSError as error:
                    return type(error).__name__
                return "connected"

        seen: list[str] = []
        monkeypatch.setattr("tools.chaos.faults._wait", lambda *_: seen.append(connect()))
        nobody: Any = None
        agent: Any = SimpleNamespace(lab=lab)
        for seed in range(6):
            FAULTS["API server down"].strike(Scene(agent, server, nobody, nobody, lambda: None), Random(seed))
        assert set(seen) == {"ConnectionRefusedError", "TimeoutError"}
        monkeypatch.undo()
        assert lab.load("list tables") == ""
        answer = lab.node.call(httpx.get, f"{server.url}/version", timeout=PATIENCE, trust_env=False)
        assert answer.status_code == 200
