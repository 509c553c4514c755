"""The comparison of an explanation with the kernel: missing, different and surplus elements, and remembered clients."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from nftproxy_conformance.lab import Lab, Origin, Probe

from nftproxy.explanation.answer import Explanation
from nftproxy.explanation.answering import explain
from nftproxy.explanation.expected import with_kernel
from nftproxy.explanation.question import Question, parse_source, parse_to
from nftproxy.kernel.nfnetlink.elements import ElementLookup
from nftproxy.model.events import Put
from nftproxy.pipeline import Pipeline
from tests.support.command import nftproxy
from tests.support.factories import pipeline, service, slice_of

SHOP = (
    service(
        type="LoadBalancer",
        load_balancer_ips=["203.0.113.7"],
        source_ranges=["198.51.100.0/24"],
        ports=["http:80:30080"],
        affinity_timeout=600,
    ),
    slice_of(),
)


@pytest.fixture
def loaded(lab: Lab) -> tuple[Lab, Pipeline]:
    """A lab whose node has the rules of a Service with every feature, and the pipeline that made the rules."""
    made = pipeline(*SHOP, wide_maps=False)
    lab.load(made.full_transaction({}).text)
    return lab, made


def asked(lab: Lab, made: Pipeline, to: str, source: str = "") -> Explanation:
    """Return an explanation that is compared with the kernel of the lab's node."""

    def answer() -> Explanation:
        with ElementLookup() as elements:
            question = Question(parse_to(to), parse_source(source) if source else None)
            return with_kernel(explain(made, question), elements.find)

    return lab.node.call(answer)


def words(explanation: Explanation) -> list[str]:
    """Return the lines of the text output that are about the kernel."""
    return [line.strip() for line in str(explanation).splitlines() if line.startswith("  kernel:")]


@pytest.mark.parametrize("to", ["svc/shop/web", "node:30080", "10.96.0.10:81", "10.96.7.7:80", "[fd00:96::7]:80"])
def test_a_kernel_with_the_rules_holds_all_of_it(loaded: tuple[Lab, Pipeline], to: str) -> None:
    """For any question, a kernel with the rules holds exactly the expected elements, and the text says so."""
    explanation = asked(*loaded, to)
    assert all(each.is_held for place in explanation.places for each in place.expected)
    assert len(words(explanation)) == len(explanation.places)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (
            "delete element ip nftproxy tcp-endpoints { 10.96.0.10 . 80 . 0.0.0.1 }",
            "kernel: tcp-endpoints must have { 10.96.0.10 . 80 . 0.0.0.1 : 10.1.1.4 . 8080 }, and has nothing",
        ),
        (
            "add element ip nftproxy no-endpoints { 10.96.0.10 . tcp . 80 }",
            "kernel: no-endpoints must have nothing, and has { 10.96.0.10 . tcp . 80 }",
        ),
        (
            "delete element ip nftproxy services { 10.96.0.10 . tcp . 80 : 0.16.0.2 }; "
            "add element ip nftproxy services { 10.96.0.10 . tcp . 80 : 0.0.0.9 }",
            "kernel: services must have { 10.96.0.10 . tcp . 80 : 0.16.0.2 }, "
            "and has { 10.96.0.10 . tcp . 80 : 0.0.0.9 }",
        ),
    ],
)
def test_differing_elements_are_named(loaded: tuple[Lab, Pipeline], damage: str, complaint: str) -> None:
    """A missing, surplus or different element is named with its expected and its actual value."""
    lab, made = loaded
    lab.node.load(damage)
    assert words(asked(lab, made, "10.96.0.10:80")) == [complaint]


def test_without_rules_all_of_it_is_missing(lab: Lab) -> None:
    """A kernel without the table holds none of the expected elements."""
    (place,) = asked(lab, pipeline(*SHOP), "10.96.0.10:80").places
    wanted = [each for each in place.expected if each.value is not None]
    assert wanted
    assert not any(each.is_held for each in wanted)


def test_a_remembered_client_is_named_with_its_pod(loaded: tuple[Lab, Pipeline]) -> None:
    """A client that has connected is sent to its pod for up to the timeout, and no other client is remembered."""
    lab, made = loaded
    (outcome,) = lab.connect_many([Probe(Origin.POD, "10.96.0.10", 80, source="10.1.0.200")])
    (place,) = asked(lab, made, "10.96.0.10:80", "10.1.0.200").places
    assert place.affinity
    assert place.affinity.remembered
    assert outcome.endpoint
    assert place.affinity.remembered.pod == outcome.endpoint.ip
    assert 500 < place.affinity.remembered.seconds <= 600
    assert place.affinity.remembered.is_used
    (case,) = place.cases
    assert case.why == f"to {outcome.endpoint.ip}, as session affinity remembers this client"
    assert {each.address: each.share for each in case.endpoints if each.share} == {outcome.endpoint.ip: 100.0}
    (other,) = asked(lab, made, "10.96.0.10:80", "10.1.0.201").places
    assert other.affinity
    assert other.affinity.is_known
    assert other.affinity.remembered is None


def test_a_remembered_pod_that_is_gone_is_not_used(loaded: tuple[Lab, Pipeline]) -> None:
    """A client whose remembered pod the Service doesn't use any more is drawn anew, and the text says so."""
    lab, made = loaded
    (outcome,) = lab.connect_many([Probe(Origin.POD, "10.96.0.10", 80, source="10.1.0.200")])
    assert outcome.endpoint
    made.ingest([Put(slice_of(endpoints=["10.1.0.77@node-a", "10.1.1.77@node-b"]))])
    (place,) = asked(lab, made, "10.96.0.10:80", "10.1.0.200").places
    assert str(place.affinity).endswith(f"this one was sent to {outcome.endpoint.ip}, which is no longer used")
    assert [each.share for each in place.cases[0].endpoints] == [50.0, 50.0]


@pytest.mark.usefixtures("namespace")
def test_the_command_asks_this_machine(tmp_path: Path) -> None:
    """`nftproxy explain --kernel` says whether this machine's kernel holds the rules that the manifests render to."""
    example = Path(__file__).resolve().parents[2] / "examples" / "cluster-ip"
    where: list[str | Path] = [example / "manifests", "--node", "node-a", "--config", example / "config.yaml"]
    empty = nftproxy("explain", "svc/shop/web", *where, "--kernel")
    missing = "kernel: services must have { 10.96.0.10 . tcp . 80 : 0.0.0.3 }, and has nothing"
    assert missing in empty.out
    assert empty.status == 1
    (rules := tmp_path / "rules.nft").write_text(nftproxy("render", *where).out)
    subprocess.run(["nft", "-f", rules], check=True)
    held = nftproxy("explain", "svc/shop/web", *where, "--kernel")
    assert "kernel: holds exactly the 7 elements that it must" in held.out
    assert held.status == 0
    assert (
        "kernel: holds exactly the 1 element that it must"
        in nftproxy("explain", "10.96.0.10:81", *where, "--kernel").out
    )
