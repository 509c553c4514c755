"""The queries of doctor: answers of this machine are bounded, and answers of a cluster may be anything."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.apiserver.faults import BlackHole, Fault, Respond

from nftproxy.api.access_reviews import PERMISSIONS
from nftproxy.model.errors import Unavailable
from nftproxy.sources import doctor_queries
from nftproxy.sources.api_client import ApiClient
from nftproxy.sources.doctor_queries import fetch, query_cluster

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@pytest.fixture
def answering() -> Iterator[Any]:
    """Return a function that answers a connection with these bytes, and returns the URL.

    Other bytes may trickle after them, for five seconds or until the client goes.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def start(answer: bytes, then: bytes = b"") -> str:
            def run() -> None:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(4096)
                    connection.sendall(answer)
                    for _ in range(500 if then else 0):
                        time.sleep(0.01)
                        connection.sendall(then)

            threading.Thread(target=run, daemon=True).start()
            return f"http://127.0.0.1:{listener.getsockname()[1]}/x"

        yield start


def test_an_answer(answering: Any) -> None:
    """The text is returned, with any bytes in it."""
    assert fetch(answering(b"HTTP/1.1 200 OK\r\n\r\na\xff")) == "a\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "/x answers 404"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 11, "/x answers more than 10 bytes"),
        (b"nonsense\r\n\r\n", "/x: "),
        (b"", "/x: "),
    ],
)
def test_no_answer(answering: Any, monkeypatch: pytest.MonkeyPatch, answer: bytes, error: str) -> None:
    """Any other answer is an error that names the URL."""
    monkeypatch.setattr(doctor_queries, "LONGEST", 10)
    with pytest.raises(Unavailable, match=error):
        fetch(answering(answer))


@pytest.mark.parametrize(
    ("first", "then"), [(b"HTTP/1.1 200 OK\r\n\r\n", b"x"), (b"", b"HTTP/1.1 100 Continue\r\n\r\n")]
)
def test_an_answer_that_trickles(answering: Any, monkeypatch: pytest.MonkeyPatch, first: bytes, then: bytes) -> None:
    """An answer that comes in small pieces, each in time, is given up as a whole."""
    monkeypatch.setattr(doctor_queries, "PATIENCE", 0.2)
    with pytest.raises(Unavailable, match=r"/x has no complete answer within 0\.2 s"):
        fetch(answering(first, then))


def test_a_url_that_is_none() -> None:
    """An invalid URL is the same error."""
    with pytest.raises(Unavailable):
        fetch("http://[::1/x")


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"allowed": False}, ""),
        ({"allowed": False, "denied": True, "reason": "not\non this node"}, "not\\non this node"),
        (
            {"allowed": False, "reason": "", "evaluationError": "no webhook answers"},
            "no webhook answers",
        ),
        ({"allowed": False, "reason": "RBAC: no role", "evaluationError": "the same again"}, "RBAC: no role"),
        ({"allowed": True, "evaluationError": "a role is missing, others allow it"}, None),
    ],
)
def test_what_an_authorizer_says(tmp_path: Path, status: dict[str, Any], why: str | None) -> None:
    """Only `allowed` counts.  A missing permission has the reason, or else the authorizer's error."""
    with ApiServer() as server:
        body = msgspec.json.encode({"kind": "SelfSubjectAccessReview", "spec": {}, "status": status})
        server.faults.add(Fault(Respond(201, body=body), resource=REVIEWS))
        cluster = ApiClient(str(server.write_kubeconfig(tmp_path / "kubeconfig")))
        assert query_cluster(cluster, "node-a", PERMISSIONS[:1]).denied == (
            {} if why is None else {PERMISSIONS[0]: why}
        )


@pytest.mark.parametrize(
    ("resource", "body"),
    [
        (REVIEWS, b"[]"),
        (REVIEWS, b'{"status": {}}'),
        ("nodes", b"{"),
        ("nodes", b'{"items": 1}'),
        ("/apis/crd.projectcalico.org/v1/felixconfigurations/default", b'{"spec": 1}'),
    ],
)
def test_a_cluster_that_answers_nonsense(tmp_path: Path, resource: str, body: bytes) -> None:
    """An answer that is not an object of its kind is an error, like no answer."""
    with ApiServer() as server:
        server.faults.add(Fault(Respond(201 if resource == REVIEWS else 200, body=body), resource=resource, count=20))
        cluster = ApiClient(str(server.write_kubeconfig(tmp_path / "kubeconfig")))
        with pytest.raises(Unavailable, match=r"an answer isn.t an access review|unexpected answer"):
            query_cluster(cluster, "node-a", PERMISSIONS)


def test_a_cluster_that_is_slow_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that accepts connections and answers nothing is an error after the time for all of its answers."""
    monkeypatch.setattr(doctor_queries, "LONGEST_QUERY", 0.2)
    with ApiServer() as server:
        server.faults.add(Fault(BlackHole(), count=None))
        cluster = ApiClient(str(server.write_kubeconfig(tmp_path / "kubeconfig")))
        with pytest.raises(Unavailable, match=r"it hasn't answered everything within 0\.2 s"):
            query_cluster(cluster, "node-a", PERMISSIONS)
