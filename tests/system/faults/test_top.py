"""`nftproxy top` beside a running agent: real connections, with the names of their Services."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Origin

from tests.support.processes import CHECKOUT
from tests.support.waiting import PATIENCE
from tests.system.faults.bench import Bench, endpoints, pod, service, vip

pytestmark = pytest.mark.slow


def test_connections_have_their_services_names(bench: Bench, server: ApiServer) -> None:
    """Each Service's connections are counted by endpoint, in a table in a pipe and in JSON."""
    server.put(service(20), endpoints(20), service(21), endpoints(21))
    bench.wait_until_right()
    bench.lab.node.flush_conntrack()
    for number, times in ((20, 2), (21, 3)):
        for _ in range(times):
            bench.lab.connect(Origin.POD, vip(number), 80)
    done = bench.command("top")
    lines = [line.split() for line in done.out.splitlines()]
    assert (done.status, done.err) == (0, "")
    assert lines == [
        ["SERVICE", "PORT", "ENDPOINT", "CONNECTIONS", "UNANSWERED"],
        ["shop/s21", "80/TCP", f"{pod(21)}:8080", "3", "3"],
        ["shop/s20", "80/TCP", f"{pod(20)}:8080", "2", "2"],
    ]
    top = json.loads(bench.command("top", "-o", "json").out)
    assert (top["connections"], top["problem"]) == (5, "")
    assert top["rows"][0] == {
        "service": "shop/s21",
        "port": "80",
        "protocol": "tcp",
        "endpoint": f"{pod(21)}:8080",
        "connections": 3,
        "unanswered": 3,
        "isGone": False,
        "pod": "",
    }


def test_a_command_without_permissions_has_the_agents_answer(bench: Bench, server: ApiServer) -> None:
    """Without CAP_NET_ADMIN, as by `kubectl exec`, the agent's reading is shown, and endpoints that are gone."""
    server.put(service(20), endpoints(20))
    bench.wait_until_right()
    bench.lab.node.flush_conntrack()
    bench.lab.connect(Origin.POD, vip(20), 80)
    server.put({**endpoints(20), "endpoints": []})
    bench.wait_until_right()
    arguments = ["top", "--agent-socket", str(bench.socket_path)]
    less = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"]
    command = [*less, sys.executable, "-m", "nftproxy", *arguments]
    process = bench.lab.node.popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, b"")
    assert out.decode().splitlines()[1].split() == ["shop/s20", "80/TCP", f"{pod(20)}:8080", "(gone)", "1", "1"]


def test_a_terminal_shows_it_again_and_again(bench: Bench) -> None:
    """On a terminal the table is redrawn until Ctrl-C, which ends the command with exit status 0."""
    ours, theirs = pty.openpty()
    arguments = ["top", "--interval", "0.1", "--agent-socket", str(bench.socket_path)]
    command = ["env", "--default-signal=INT", sys.executable, "-m", "nftproxy", *arguments]  # a shell's "&" ignores it
    process = bench.lab.node.popen(command, cwd=CHECKOUT, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while shown.count(b"\x1b[2J") < 3:
        shown += os.read(ours, 1 << 16)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # once nobody has the terminal open any more
        while os.read(ours, 1 << 16):
            pass
    assert process.wait(PATIENCE) == 0
    os.close(ours)
    assert b"active connections" in shown
    assert b"SERVICE" in shown
