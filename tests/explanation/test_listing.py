"""The review of a generation: ordered, commented, independent of the order of events, and valid nft."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from nftproxy_conformance.strategies import quick
from nftproxy_conformance.strategies.histories import batches, clusters, histories, survivors
from nftproxy_conformance.strategies.objects import Given, all_settings, hostile_names

from nftproxy.explanation.listing import notes, review
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem
from nftproxy.model.events import Event, Put
from nftproxy.model.objects import Ignored, ObjectKey, ServicePort, TrafficDistribution, TrafficPolicy
from nftproxy.pipeline import Pipeline
from nftproxy.policy.extension import Settings
from tests.support.factories import IPV6, key, node, pipeline, renderer, service, slice_of


def text_of(made: Pipeline, *, problems: tuple[Problem, ...] = (), ignored: tuple[Ignored, ...] = ()) -> str:
    """Return the text of the whole review."""
    return "".join(review(made, problems, ignored))


def comments(made: Pipeline, **told: tuple[Problem, ...] | tuple[Ignored, ...]) -> list[str]:
    """Return the lines at the top of a review."""
    lines = text_of(made, **told).splitlines()  # type: ignore[arg-type]
    return lines[: lines.index("")]


# The top


def test_omitted_objects_are_listed_at_the_top() -> None:
    """Each ignored object, bad input and lost conflict has a line at the top, in this order."""
    made = pipeline(service(created=1), service("blog/api", created=2))
    told = comments(
        made,
        problems=(
            Problem("web.yaml", "Service shop/web", "spec.ports[0].port", "0 is not a port", Code.SERVICE_FIELD),
        ),
        ignored=(Ignored("Service shop/headless", "it is headless (clusterIP None)"),),
    )
    assert told[1:] == [
        "# skipped: Service shop/headless: it is headless (clusterIP None)",
        "# bad input: NFT204: web.yaml: Service shop/web: spec.ports[0].port: 0 is not a port",
        "# conflict: NFT301: blog/api:http does not get 10.96.0.10:80/TCP: "
        "it belongs to Service shop/web, which takes precedence",
    ]


def test_a_conflict_has_a_single_line() -> None:
    """A node port that is lost in both families has a single line, in which a nameless port has its Service's name."""
    made = pipeline(
        service("shop/web", cluster_ips=["10.96.0.10", "fd00:96::10"], ports=["80:30080"]),
        service("shop/zoo", cluster_ips=["10.96.0.20", "fd00:96::20"], ports=["80:30080"]),
    )
    assert comments(made)[1:] == [
        "# conflict: NFT301: shop/zoo does not get node:30080/TCP: "
        "it belongs to Service shop/web, which takes precedence"
    ]


@pytest.mark.parametrize(
    ("wide_maps", "cluster_ip", "pod", "told"),
    [
        (False, "fd00:96::10", "fd00:1::4", True),
        (True, "fd00:96::10", "fd00:1::4", False),
        (False, "10.96.0.10", "10.1.0.4", False),
        (False, "fd00:96::10", "fd00:1::4 unready", True),
    ],
)
def test_affinity_by_hash_is_said(wide_maps: bool, cluster_ip: str, pod: str, told: bool) -> None:
    """While a Service has IPv6 affinity that an old nft can't remember, a line at the top says so."""
    made = pipeline(
        service(cluster_ips=[cluster_ip], affinity_timeout=60), slice_of(endpoints=[pod]), wide_maps=wide_maps
    )
    how = "by a hash of the client's address; nft before 1.1 can't remember IPv6 clients"
    line = f"session affinity, IPv6: NFT310: {how}"
    assert list(notes(made, [], [])) == ([line] if told else [])
    made.ingest([Put(service(cluster_ips=[cluster_ip]))])
    assert list(notes(made, [], [])) == []


NEAR = ["10.1.0.4@node-a zone=a", "10.1.1.4@node-b zone=b"]
FAR = ["10.1.1.4@node-b zone=b", "10.1.2.4@node-c zone=b,c"]
PARTLY = ["10.1.0.4@node-a zone=a", "10.1.1.4@node-b"]


@pytest.mark.parametrize(
    ("endpoints", "why"),
    [
        (NEAR, ""),
        (["10.1.0.4@node-a node=node-a", "10.1.1.4@node-b node=node-b"], ""),
        (["10.1.0.4@node-a unready"], ""),
        (FAR, "no hint names this node's zone, a"),
        (PARTLY, "not every ready endpoint has hints for zones"),
        ([*NEAR, "10.1.2.4@node-c unready"], ""),
    ],
)
def test_a_preference_that_is_not_followed_is_explained(endpoints: list[str], why: str) -> None:
    """Only a Service that asks for near endpoints and gets all of them has a line, which says why."""
    wish = TrafficDistribution.PREFER_SAME_ZONE
    what = "uses all endpoints in spite of trafficDistribution PreferSameZone"
    told = f"topology: NFT308: shop/web, port 80: {what}: {why}"
    made = pipeline(service(traffic_distribution=wish), slice_of(endpoints=endpoints))
    assert list(notes(made, [], [])) == ([told] if why else [])
    made.ingest([Put(service())])
    assert list(notes(made, [], [])) == []


@pytest.mark.parametrize(("kind", "count"), [("ClusterIP", 0), ("NodePort", 1)])
def test_internal_policy_local_has_no_preference(kind: str, count: int) -> None:
    """A Service whose fronts all use the node's own endpoints has no line, as it doesn't use all endpoints."""
    wish = TrafficDistribution.PREFER_SAME_ZONE
    local = service(type=kind, ports=["http:80:30080"], traffic_distribution=wish, internal_policy=TrafficPolicy.LOCAL)
    assert len(list(notes(pipeline(local, slice_of(endpoints=FAR)), [], []))) == count


def test_a_node_without_a_zone_follows_no_preference() -> None:
    """A line says if the node has no label topology.kubernetes.io/zone, as no hint can name its zone then."""
    made = pipeline(
        service(traffic_distribution=TrafficDistribution.PREFER_CLOSE), slice_of(endpoints=NEAR), node(zone="")
    )
    (told,) = notes(made, [], [])
    assert told.endswith("in spite of trafficDistribution PreferClose: this node's zone is not known")


def test_a_preference_changes_no_rule() -> None:
    """Rules depend on hints alone, so they are the same with spec.trafficDistribution and without it."""
    plain = pipeline(service(), slice_of(endpoints=FAR))
    asking = pipeline(service(traffic_distribution=TrafficDistribution.PREFER_SAME_NODE), slice_of(endpoints=FAR))
    (_, *rules), (_, *plain_rules) = text_of(asking).split("\n\n"), text_of(plain).split("\n\n")
    assert rules == plain_rules


# The rules


def test_node_ports_at_localhost_are_said() -> None:
    """The top lists the localhost node ports that the agent forwards without rules, and ports that nothing serves."""
    ports, slice_ports = ["a:53:30053/tcp", "a:53:30053/udp"], ["a:5353/tcp", "a:5353/udp"]
    made = pipeline(
        service(ports=ports, cluster_ips=["10.96.0.10", "fd00:96::10"]),
        slice_of(ports=slice_ports),
        slice_of(ports=slice_ports, endpoints=["fd00:1::4@node-a"], suffix="6"),
        node_port_addresses=["primary", "localhost"],
    )
    said = [line for line in comments(made) if line.startswith("# localhost")]
    assert said == [
        "# localhost: the agent forwards 127.0.0.1:30053, of shop/web, TCP only, to 10.1.0.4:5353, 10.1.1.4:5353",
        "# localhost: the agent forwards [::1]:30053, of shop/web, TCP only, to [fd00:1::4]:5353",
        "# localhost: NFT309: nothing serves udp port 127.0.0.1:30053 of shop/web: only TCP is forwarded",
        "# localhost: NFT309: nothing serves udp port [::1]:30053 of shop/web: only TCP is forwarded",
    ]
    assert not [line for line in comments(pipeline(service(ports=ports))) if line.startswith("# localhost")]


def test_an_element_of_many_names_the_first() -> None:
    """If an element has more than three owners, the first three are named and the rest is counted."""
    many = [service(f"shop/s{number}", cluster_ips=["10.96.0.10"], ports=[f"{80 + number}"]) for number in range(5)]
    assert "      10.96.0.10,  # shop/s0, shop/s1, shop/s2 and 2 more\n" in text_of(pipeline(*many))


def test_unused_chains_are_not_shown() -> None:
    """A chain for a past number of endpoints, which the pipeline keeps for reuse, isn't in the review."""
    made = pipeline(service(), slice_of(endpoints=["10.1.1.4", "10.1.1.5"]))
    made.ingest([Put(slice_of(endpoints=["10.1.1.4"]))])
    assert "of-2" not in text_of(made)
    assert text_of(made) == text_of(pipeline(service(), slice_of(endpoints=["10.1.1.4"])))


def test_only_families_that_are_asked_for_are_tables() -> None:
    """The review has a table for each requested family, and for no other."""
    assert re.findall("^table .*", text_of(pipeline(families=[IPV6])), re.MULTILINE) == ["table ip6 nftproxy {"]


# Comments


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("plain", "# bad input: NFT204: plain"),
        ("two\nlines", r"# bad input: NFT204: two\nlines"),
        ("a\u2028b", r"# bad input: NFT204: a\u2028b"),
        ("a\x1b[2Jb", r"# bad input: NFT204: a\x1b[2Jb"),
        ("\u00fcber", "# bad input: NFT204: \u00fcber"),
        ("x" * 300, f"# bad input: NFT204: {'x' * 278}..."),
        ("x" * 281, f"# bad input: NFT204: {'x' * 281}"),
    ],
)
def test_a_comment_is_one_short_line(message: str, line: str) -> None:
    """Characters that end a line or move a terminal's cursor are escaped, and a long comment is cut."""
    assert comments(pipeline(), problems=(Problem("", "", "", message, Code.SERVICE_FIELD),))[1:] == [line]


@quick(100)
@given(name=hostile_names, port=hostile_names, message=hostile_names)
def test_names_are_no_nft(name: str, port: str, message: str) -> None:
    """Names and messages, even hostile, change neither the text without its comments nor the transactions."""
    hostile = named(ObjectKey(name, name), port, name)
    tame = named(key("shop/web"), "http", "node-a")
    told = text_of(
        hostile,
        problems=(Problem(message, name, port, message, Code.SERVICE_FIELD),),
        ignored=(Ignored(name, message),),
    )
    assert without_comments(told) == without_comments(text_of(tame))
    assert hostile.full_transaction({}) == tame.full_transaction({})


def named(of: ObjectKey, port: str, node_name: str) -> Pipeline:
    """Return a pipeline with a Service of this key and a conflict, on a node of this name."""
    one = structs.replace(service(created=1), key=of, ports=(ServicePort(port, *http[1:]),))
    other = structs.replace(one, key=ObjectKey(of.namespace, of.name + "2"), created=2)
    pods = slice_of(endpoints=["10.1.1.4"])
    own = structs.replace(pods, service=of, ports=(structs.replace(pods.ports[0], name=port),))
    return pipeline(one, other, own, node=node(node_name))


http = structs.astuple(service().ports[0])


def without_comments(text: str) -> list[str]:
    """Return the lines that nft reads, each without its comment.  Empty lines are left out."""
    lines = (line.partition("#")[0].rstrip() for line in re.split(r"[\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", text))
    return [line for line in lines if line]


# Order


@quick()
@given(st.data(), all_settings, clusters)
def test_the_order_of_events_does_not_matter(data: st.DataObject, settings: Settings, cluster: list[Given]) -> None:
    """The same objects make the same text, byte for byte, in any order and any batches."""
    texts = set()
    for _ in range(2):
        made = Pipeline("node-a", settings, renderer())
        for batch in data.draw(batches(cluster)):
            made.ingest(batch)
        texts.add(text_of(made))
    assert len(texts) == 1


@quick()
@given(all_settings, histories)
def test_history_does_not_matter(settings: Settings, history: list[list[Event]]) -> None:
    """After any events the text is the same as for the present objects alone."""
    made, whole = (Pipeline("node-a", settings, renderer()) for _ in range(2))
    for batch in history:
        made.ingest(batch)
    whole.ingest([Put(each) for each in survivors(history)])
    assert text_of(made) == text_of(whole)
