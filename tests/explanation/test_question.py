"""Parsing questions: each valid form, and texts that are no question."""

from __future__ import annotations

import pytest

from nftproxy.explanation.question import (
    Source,
    SourceKind,
    To,
    ToAddress,
    ToNode,
    ToService,
    parse_source,
    parse_to,
)
from nftproxy.model.addresses import Address, Protocol
from nftproxy.model.errors import BadInput
from nftproxy.model.objects import ObjectKey

TCP, UDP, SCTP = Protocol
WEB = ObjectKey("shop", "web")


@pytest.mark.parametrize(
    ("text", "to"),
    [
        ("10.96.0.10:80", ToAddress(Address("10.96.0.10"), TCP, 80)),
        ("10.96.0.10:53/udp", ToAddress(Address("10.96.0.10"), UDP, 53)),
        ("[fd00:96::0010]:65535/sctp", ToAddress(Address("fd00:96::10"), SCTP, 65535)),
        ("svc/shop/web", ToService(WEB)),
        ("svc/shop/web:http", ToService(WEB, "http")),
        ("svc/shop/web:53/udp", ToService(WEB, "53", UDP)),
        ("svc/shop/udp", ToService(ObjectKey("shop", "udp"))),
        ("node:30080", ToNode(TCP, 30080)),
        ("node:30053/udp", ToNode(UDP, 30053)),
    ],
)
def test_each_form_is_read(text: str, to: To) -> None:
    """Each form of a destination is parsed, and its own text is parsed as the same destination."""
    assert parse_to(text) == to
    assert parse_to(str(to)) == to


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("10.96.0.10:80", "10.96.0.10:80/TCP"),
        ("[fd00:96::10]:53/udp", "[fd00:96::10]:53/UDP"),
        ("svc/shop/web:53/Sctp", "svc/shop/web:53/SCTP"),
        ("svc/shop/web:http", "svc/shop/web:http"),
        ("node:30053/UDP", "node:30053/UDP"),
    ],
)
def test_ports_are_shown_as_kubectl_writes_them(text: str, shown: str) -> None:
    """The protocol is in capitals, however it is asked for."""
    assert str(parse_to(text)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.96.0.10",
        "10.96.0.10:http",
        "10.96.0.10:0",
        "10.96.0.10:65536",
        "10.96.0.10:٨٠",
        "10.96.0.10:80/icmp",
        "10.96.0.010:80",
        "fd00:96::10:80",
        "[10.96.0.10]:80",
        "[::ffff:10.96.0.10]:80",
        "node:",
        "svc/web",
        "svc/shop/",
        "svc//web",
        "svc/shop/web/http",
        "1" * 100_000,
    ],
)
def test_an_invalid_place_is_bad_input(text: str) -> None:
    """A text of no valid form is bad input, with a message of bounded length."""
    with pytest.raises(BadInput) as caught:
        parse_to(text)
    assert len(str(caught.value)) < 400


def test_a_name_without_a_namespace_is_shown_the_form() -> None:
    """The message names the argument and its required form."""
    with pytest.raises(BadInput, match=r"'svc/web': TO: is not svc/NAMESPACE/NAME"):
        parse_to("svc/web")
    with pytest.raises(BadInput, match=r"'pod/web': --from: is not pod/NAMESPACE/NAME"):
        parse_source("pod/web")


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("node", Source(SourceKind.NODE)),
        ("outside", Source(SourceKind.OUTSIDE)),
        ("10.1.0.4", Source(address=Address("10.1.0.4"))),
        ("fd00:1::04", Source(address=Address("fd00:1::4"))),
        ("pod/shop/web-1", Source(pod=ObjectKey("shop", "web-1"))),
    ],
)
def test_each_source_is_read(text: str, source: Source) -> None:
    """Each form of a source is parsed."""
    assert parse_source(text) == source


@pytest.mark.parametrize("text", ["", "nodes", "10.1.0", "pod/web-1", "pod/shop/", "10.1.0.0/16"])
def test_an_invalid_source_is_bad_input(text: str) -> None:
    """A text of no valid form is bad input."""
    with pytest.raises(BadInput, match=r"from|pod"):
        parse_source(text)
