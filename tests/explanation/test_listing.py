"""A generation for people: ordered, commented, the same whatever the events, and nft all the same."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from nftproxy.conformance.strategies import (
    Given,
    all_settings,
    batches,
    clusters,
    histories,
    hostile_names,
    quick,
    survivors,
)
from nftproxy.explanation.listing import notes, review
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem
from nftproxy.model.events import Event, Put
from nftproxy.model.objects import Ignored, ObjectKey, ServicePort, TrafficDistribution
from nftproxy.model.settings import Settings
from nftproxy.pipeline import Pipeline
from tests.support.factories import IPV4, IPV6, key, node, pipeline, renderer, service, service_cidr, slice_of


def text_of(made: Pipeline, *, problems: tuple[Problem, ...] = (), ignored: tuple[Ignored, ...] = ()) -> str:
    """The whole review."""
    return "".join(review(made, problems, ignored))


def part(made: Pipeline, head: str) -> str:
    """One declaration of a review, from its head to its closing brace, not indented."""
    found = re.search(rf"^  {re.escape(head)} {{\n.*?^  }}\n", text_of(made), re.MULTILINE | re.DOTALL)
    assert found, head
    return re.sub("^  ", "", found[0], flags=re.MULTILINE)


def comments(made: Pipeline, **told: tuple[Problem, ...] | tuple[Ignored, ...]) -> list[str]:
    """The lines at the top of a review."""
    lines = text_of(made, **told).splitlines()  # type: ignore[arg-type]
    return lines[: lines.index("")]


# The top


def test_a_review_says_for_which_node_it_is() -> None:
    """Nothing to tell is one line."""
    assert comments(pipeline()) == ["# nftproxy: rules for node node-a"]


def test_what_was_left_out_is_said_at_the_top() -> None:
    """Ignored objects, bad input and lost conflicts have a line each, in this order."""
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
        "# conflict: NFT301: blog/api:http does not get 10.96.0.10 . tcp . 80: "
        "it belongs to Service shop/web, which takes precedence",
    ]


def test_a_conflict_is_told_once() -> None:
    """A node port that is lost in both families is one line; a nameless port goes by its Service's name."""
    made = pipeline(
        service("shop/web", cluster_ips=["10.96.0.10", "fd00:96::10"], ports=["80:30080"]),
        service("shop/zoo", cluster_ips=["10.96.0.20", "fd00:96::20"], ports=["80:30080"]),
    )
    assert comments(made)[1:] == [
        "# conflict: NFT301: shop/zoo does not get tcp . 30080: it belongs to Service shop/web, which takes precedence"
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
    """Where an old nft can't remember IPv6 clients, and there are such Services, that is said."""
    made = pipeline(
        service(cluster_ips=[cluster_ip], affinity_timeout=60), slice_of(endpoints=[pod]), wide_maps=wide_maps
    )
    how = "by a hash of the client's address; nft before 1.1 can't remember IPv6 clients"
    line = f"session affinity, IPv6: NFT310: {how}"
    assert list(notes(made, [], [])) == ([line] if told else [])


def test_affinity_by_hash_is_said_only_while_it_is_so() -> None:
    """When the last such Service has gone nothing is said of it."""
    made = pipeline(
        service(cluster_ips=["fd00:96::10"], affinity_timeout=60), slice_of(endpoints=["fd00:1::4"]), wide_maps=False
    )
    made.apply([Put(service(cluster_ips=["fd00:96::10"]))])
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
    """A Service that asks for near endpoints and gets all of them has a line that says why; no other has."""
    wish = TrafficDistribution.PREFER_SAME_ZONE
    what = "uses all endpoints in spite of trafficDistribution PreferSameZone"
    told = f"topology: NFT308: shop/web, port 80: {what}: {why}"
    made = pipeline(service(traffic_distribution=wish), slice_of(endpoints=endpoints))
    assert list(notes(made, [], [])) == ([told] if why else [])
    made.apply([Put(service())])
    assert list(notes(made, [], [])) == []


def test_a_node_without_a_zone_follows_no_preference() -> None:
    """Without the label topology.kubernetes.io/zone no hint can name this node's zone, which is said."""
    made = pipeline(
        service(traffic_distribution=TrafficDistribution.PREFER_CLOSE), slice_of(endpoints=NEAR), node(zone="")
    )
    (told,) = notes(made, [], [])
    assert told.endswith("in spite of trafficDistribution PreferClose: this node's zone is not known")


def test_a_preference_changes_no_rule() -> None:
    """Hints decide, and spec.trafficDistribution alone doesn't: the rules are the same with it and without."""
    plain = pipeline(service(), slice_of(endpoints=FAR))
    asking = pipeline(service(traffic_distribution=TrafficDistribution.PREFER_SAME_NODE), slice_of(endpoints=FAR))
    (_, *rules), (_, *plain_rules) = text_of(asking).split("\n\n"), text_of(plain).split("\n\n")
    assert rules == plain_rules


# The rules


def test_node_ports_at_localhost_are_said() -> None:
    """What has no rule is said at the top: which endpoints the agent forwards to, and what nothing serves."""
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


def test_elements_say_to_whom_they_belong() -> None:
    """Each element has its Service port beside it, in the order of these; shared ones name all."""
    made = pipeline(
        service("shop/web", cluster_ips=["10.96.0.10"], ports=["http:80"]),
        service("blog/api", cluster_ips=["10.96.0.20"], ports=["80"]),
        slice_of("shop/web", ["10.1.0.4@node-a"]),
        slice_of("blog/api", ["10.1.0.4@node-a"], ports=["8080"]),
    )
    assert part(made, "map services") == (
        "map services {\n"
        "  typeof ip daddr . meta l4proto . th dport : ip daddr\n"
        "  elements = {\n"
        "    10.96.0.20 . tcp . 80 : 0.0.0.1,  # blog/api\n"
        "    10.96.0.10 . tcp . 80 : 0.0.0.1,  # shop/web:http\n"
        "  }\n"
        "}\n"
    )
    assert part(made, "set hairpin") == (
        "set hairpin {\n"
        "  typeof ip saddr . ip daddr . meta l4proto . th dport\n"
        "  elements = {\n"
        "    10.1.0.4 . 10.1.0.4 . tcp . 8080,  # blog/api, shop/web:http\n"
        "  }\n"
        "}\n"
    )


def test_an_element_of_many_names_the_first() -> None:
    """Of more than three owners the first three are named, and the rest counted."""
    many = [service(f"shop/s{number}", cluster_ips=["10.96.0.10"], ports=[f"{80 + number}"]) for number in range(5)]
    assert "    10.96.0.10,  # shop/s0, shop/s1, shop/s2 and 2 more\n" in part(pipeline(*many), "set cluster-ips")


def test_what_the_node_contributes_needs_no_owner() -> None:
    """The node's addresses and the ServiceCIDRs stand without a comment."""
    made = pipeline(service_cidr())
    assert "    192.168.0.2,\n" in part(made, "set nodeport-ips")
    assert "    10.96.0.0/16,\n" in part(made, "set service-cidrs")


def test_a_set_without_elements_has_none() -> None:
    """An empty set is its declaration."""
    assert part(pipeline(), "set masqueraded") == (
        "set masqueraded {\n  typeof ip daddr . meta l4proto . th dport\n}\n"
    )


def test_the_order_is_that_of_the_templates() -> None:
    """Sets come first, then what Services share, by name, then the skeleton's chains; every table is whole."""
    made = pipeline(service(affinity_timeout=60), slice_of(), families=[IPV4])
    heads = re.findall(r"^  (?:set|map|chain) ([\w-]+) {$", text_of(made), re.MULTILINE)
    own = [
        "sticky-tcp-endpoints",
        "tcp-affinity-60",
        "tcp-endpoints",
        "tcp-endpoints-timeouts",
        "follow-tcp-endpoints",
        "follow-tcp-endpoints-60",
        "remember-tcp-60",
        "revisit-tcp-endpoints",
        "tcp-endpoints-of-2",
        "tcp-endpoints-of-2-sticky",
        "translate-tcp-endpoints",
    ]
    start = heads.index(own[0])
    assert heads[start : start + len(own)] == own
    assert heads[start - 1] == "remembering"
    assert heads[start + len(own)] == "refuse"
    assert len(heads) == len(made.generations[IPV4].declarations)


def test_what_is_no_longer_used_is_not_shown() -> None:
    """A chain for a past number of endpoints, kept for the next time, is none of a reviewer's business."""
    made = pipeline(service(), slice_of(endpoints=["10.1.1.4", "10.1.1.5"]))
    made.apply([Put(slice_of(endpoints=["10.1.1.4"]))])
    assert "of-2" not in text_of(made)
    assert text_of(made) == text_of(pipeline(service(), slice_of(endpoints=["10.1.1.4"])))


def test_each_family_is_a_table() -> None:
    """There is a table for each family asked for, in the order of asking."""
    assert re.findall("^table .*", text_of(pipeline()), re.MULTILINE) == [
        "table ip nftproxy {",
        "table ip6 nftproxy {",
    ]
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
    """What could end a line or move a terminal's cursor is spelt out, and what is too long is cut."""
    assert comments(pipeline(), problems=(Problem("", "", "", message, Code.SERVICE_FIELD),))[1:] == [line]


@quick(100)
@given(name=hostile_names, port=hostile_names, message=hostile_names)
def test_names_are_no_nft(name: str, port: str, message: str) -> None:
    """Whatever names and messages contain, the text less its comments is the same, and so are transactions."""
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
    """A pipeline with a Service of this key and a conflict, on a node of this name."""
    one = structs.replace(service(created=1), key=of, ports=(ServicePort(port, *http[1:]),))
    other = structs.replace(one, key=ObjectKey(of.namespace, of.name + "2"), created=2)
    pods = slice_of(endpoints=["10.1.1.4"])
    own = structs.replace(pods, service=of, ports=(structs.replace(pods.ports[0], name=port),))
    return pipeline(one, other, own, node=node(node_name))


http = structs.astuple(service().ports[0])


def without_comments(text: str) -> list[str]:
    """The lines that nft reads: not those that are comments, and of the others what stands before one."""
    lines = (line.partition("#")[0].rstrip() for line in re.split(r"[\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", text))
    return [line for line in lines if line]


# Order


@quick()
@given(st.data(), all_settings, clusters)
def test_the_order_of_events_does_not_matter(data: st.DataObject, settings: Settings, cluster: list[Given]) -> None:
    """The same objects make the same text, byte for byte, in whatever order and however batched they came."""
    texts = set()
    for _ in range(2):
        made = Pipeline("node-a", settings, renderer())
        for batch in data.draw(batches(cluster)):
            made.apply(batch)
        texts.add(text_of(made))
    assert len(texts) == 1


@quick()
@given(all_settings, histories)
def test_history_does_not_matter(settings: Settings, history: list[list[Event]]) -> None:
    """After any events the text is that of the objects which are there now."""
    made, whole = (Pipeline("node-a", settings, renderer()) for _ in range(2))
    for batch in history:
        made.apply(batch)
    whole.apply([Put(each) for each in survivors(history)])
    assert text_of(made) == text_of(whole)
