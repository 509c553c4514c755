"""The demo keeps its promises, also without a terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nftproxy_conformance.lab import obstacle

from tests.conftest import Run
from tools.demo import EXAMPLE, Report, manifests, pods_of

CHECKOUT = Path(__file__).resolve().parents[2]

LINES = [
    r"  ok     \d+\.\d\d s after the start of the process the kernel holds [1-9]\d+ elements in 2 tables",
    r"  ok     pod -> ClusterIP      10\.96\.0\.10:80/TCP           web-1 \d+, web-2 \d+, web-3 \d+",
    r"  ok     node -> ClusterIP     10\.96\.0\.10:80/TCP           web-1 \d+, web-2 \d+, web-3 \d+",
    r"  ok     pod -> ClusterIP      \[fd00:96::2\]:53/UDP         coredns-1 \d+, coredns-2 \d+",
    r"  ok     outside -> node port  192\.168\.0\.2:30080/TCP       web-1 \d+, web-2 \d+, web-3 \d+",
    r"  ok     outside -> balancer   203\.0\.113\.7:443/TCP         gateway-1 150, .* 198\.51\.100\.7",
    r"  ok     outside -> balancer   \[2001:db8:113::7\]:443/TCP   gateway-1 150, .* 2001:db8:100::7",
    r"  ok     pod -> no endpoints   10\.96\.0\.62:80/TCP           connection refused after \d+\.\d ms",
    r"  ok     stranger -> balancer  203\.0\.113\.7:443/TCP         no answer for .*",
    r"  ok     a pod and a host outside made \d{3,} connections, 0 failed .*",
    r"  ok     the new pod answered \d+(, \d+){2,} ms after the file was closed",
    r"  ok     from then on: web-1 \d+, web-3 \d+, web-4 \d+",
    r"  ok     pod -> ClusterIP      10\.96\.0\.50:80/TCP           0 clients saw more than one pod; .*",
    r"  ok     pod -> ClusterIP      \[fd00:96::50\]:80/TCP        0 clients saw more than one pod; .*",
    r"  ok     the process ended with status 0 after \d+ ms",
    r"  ok     the rules are still there: [1-9]\d+ elements",
    r"  ok     the pod made \d{3,} connections, 0 failed",
    r"  ok     it ended with status 0; 0 tables are left",
    r"All promises were kept\.",
]


@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
def test_the_demo_shows_what_nftproxy_does() -> None:
    """Without a terminal, an environment or an open standard input, every promise is shown to be kept."""
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m tools.demo <&-"],
        cwd=CHECKOUT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    lines = iter(done.stdout.splitlines())
    for line in LINES:
        assert any(re.fullmatch(line, each) for each in lines), f"{line} is not where it belongs in\n{done.stdout}"
    assert "\033" not in done.stdout


def test_a_broken_promise_is_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    """A promise that isn't kept is marked, and makes the exit status 1."""
    report = Report()
    report.promise(kept=True, text="this holds")
    assert report.end() == 0
    report.promise(kept=False, text="this doesn't")
    assert report.end() == 1
    assert "  BROKEN" in capsys.readouterr().out


def test_without_root_the_demo_says_what_it_needs(as_nobody: Run) -> None:
    """Without the right to make namespaces the demo prints the reason, and the exit status is 2."""
    code = (
        "import contextlib, io, tools.demo as demo\n"
        "with contextlib.redirect_stderr(io.StringIO()) as said: status = demo.main()\n"
        "print(status, said.getvalue(), end='')"
    )
    assert as_nobody(code) == "2 root is needed, for network namespaces and raw sockets\n"


def test_every_endpoint_of_the_example_is_a_pod() -> None:
    """The demo's pods are the pods of the manifests, at their addresses of both families."""
    pods = {pod.name: pod for pod in pods_of(each for each in manifests(EXAMPLE / "manifests") if "endpoints" in each)}
    assert pods["web-3"][1:4] == ("node-b", "10.1.1.4", "fd00:1:0:1::4")
    addresses = {pod.address for pod in pods.values()} | {pod.address6 for pod in pods.values()}
    for each in manifests(EXAMPLE / "manifests"):
        for endpoint in each.get("endpoints", ()):
            assert "targetRef" not in endpoint or addresses.issuperset(endpoint["addresses"])
