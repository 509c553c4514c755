"""`nftproxy explain --trace`, as people and programs use it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nftproxy.kernel.capabilities import probe
from nftproxy.kernel.libnftables import Kernel
from nftproxy.rules.transaction import Transaction
from nftproxy.templates_dir import templates_dir
from nftproxy.trace.node import obstacle
from nftproxy.trace.tracing import ROUTES
from tests.support.command import Done, nftproxy
from tests.support.examples import CHECKOUT, example_pipeline

WHERE = CHECKOUT / "examples" / "cluster-ip"
OPTIONS = (WHERE / "manifests", "--config", WHERE / "config.yaml", "--node", "node-a", "--trace")

needs_lab = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


def explain(to: str, *more: str | Path) -> Done:
    """Explain and trace a connection in an example."""
    return nftproxy("explain", to, *OPTIONS, *more)


@needs_lab
def test_a_trace_follows_the_explanation() -> None:
    """After the explanation each step is a line with its result, and the last line says that it is as explained."""
    done = explain("10.96.0.20:80", "--from", "node")
    lines = done.out.splitlines()
    assert done.status == 0
    assert lines[0] == "10.96.0.20:80/TCP from the node itself, on node node-a"
    step = "  output -101       nat-output        new connection: looks for source ranges first"
    assert step in lines
    assert lines[-2:] == ["  => rejected (tcp reset)", "  as explained"]


@needs_lab
def test_programs_get_both_as_json() -> None:
    """The JSON has the explanation and the traces, with steps and differences."""
    answer = json.loads(explain("10.96.0.10:80", "--from", "10.1.0.200", "--output", "json").out)
    assert answer["explanation"]["to"] == "10.96.0.10:80/TCP"
    (trace,) = answer["traces"]
    assert (trace["source"], trace["fate"], trace["differences"]) == ("10.1.0.200", "endpoint", [])
    assert {"hook", "priority", "chain", "rule", "verdict", "words"} == set(trace["steps"][0])


@needs_lab
def test_templates_that_do_something_else_differ(tmp_path: Path) -> None:
    """Templates that masquerade nothing are found out, and the exit status is 1."""
    shutil.copytree(templates_dir(), tmp_path, dirs_exist_ok=True)
    table = tmp_path / "table.nft.j2"
    table.write_text(table.read_text().replace("jump hide-source", "accept"))
    done = explain("10.96.0.10:80", "--from", "outside", "--templates", tmp_path)
    assert done.status == 1
    assert done.out.splitlines()[-1] == "  DIFFERS: its source is explained as masqueraded, but kept by the kernel"


@needs_lab
@pytest.mark.usefixtures("namespace")
def test_with_the_kernel_its_own_rules_are_traced() -> None:
    """With --kernel the copy is of the rules in this network namespace, damage included."""
    Kernel().apply(example_pipeline("cluster-ip").full_transaction({}))
    intact = explain("10.96.0.10:80", "--from", "outside", "--kernel")
    assert (intact.status, intact.out.splitlines()[-1]) == (0, "  as explained")
    assert "traced through a throw-away copy of what the kernel of this machine holds" in intact.out
    Kernel().apply(Transaction("flush map ip nftproxy draws\n"))
    damaged = explain("10.96.0.10:80", "--from", "outside", "--kernel")
    assert damaged.status == 1
    assert damaged.out.splitlines()[-1] == ("  DIFFERS: explained as translated, but dropped by the kernel")
    assert "the chain that draws is missing, or was just deleted: drops the packet" in damaged.out
    assert explain("10.96.0.10:80", "--from", "outside").status == 0


OUTSIDER = ("10.96.0.10:80", "--from", "outside", "--kernel")


@needs_lab
@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize(
    "rules",
    [
        "table inet wall { chain block { type filter hook forward priority 5; policy drop; }; }",
        "table ip wall {\n"
        "  set bad { typeof ip saddr; flags interval; elements = { 198.51.100.0/24 }; }\n"
        "  counter seen { packets 0 bytes 0; }\n"
        "  chain block { type filter hook forward priority -5; ip saddr @bad counter name seen reject; }\n"
        "}",
    ],
    ids=["a policy of inet", "a rule of ip"],
)
def test_other_programs_tables_are_traced(rules: str) -> None:
    """A firewall in the kernel that stops the packet is part of the copy, and the difference names its chain."""
    Kernel().apply(example_pipeline("cluster-ip").full_transaction({}))
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
    done = explain(*OUTSIDER)
    assert done.status == 1
    assert f"not tried: {ROUTES}\n" in done.out
    (line,) = (line for line in done.out.splitlines() if "DIFFERS" in line)
    assert "by the kernel, in the chain block of the table wall of another program" in line
    assert explain("10.96.0.10:80", "--from", "outside").status == 0


@needs_lab
@pytest.mark.usefixtures("namespace")
def test_packets_that_another_program_exempts_from_tracking() -> None:
    """A table that exempts packets from connection tracking is part of the copy, and they pass untranslated."""
    Kernel().apply(example_pipeline("cluster-ip").full_transaction({}))
    rules = "table ip raw { chain p { type filter hook prerouting priority -300; tcp dport 80 notrack; }; }"
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
    done = explain(*OUTSIDER)
    assert f"not tried: {ROUTES}\n" in done.out
    assert (done.status, "DIFFERS: explained as translated, but let through by the kernel" in done.out) == (1, True)


@needs_lab
@pytest.mark.usefixtures("namespace")
def test_what_a_copy_lacks_is_said() -> None:
    """A table of netdev isn't copied, nor any table of other programs with manifests alone, and a line says so."""
    Kernel().apply(example_pipeline("cluster-ip").full_transaction({}))
    at_device = 'table netdev guard { chain in { type filter hook ingress device "lo" priority 0; drop; }; }'
    subprocess.run(["nft", "-f", "-"], input=at_device, text=True, check=True)
    done = explain(*OUTSIDER)
    assert f"not tried: {ROUTES}; the table netdev guard\n" in done.out
    assert (done.status, done.out.splitlines()[-1]) == (0, "  as explained")
    without = explain("10.96.0.10:80", "--from", "outside")
    assert f"not tried: other programs' tables; {ROUTES}\n" in without.out


@needs_lab
@pytest.mark.usefixtures("namespace")
@pytest.mark.slow
def test_a_table_that_stops_the_traces_own_packets_is_left_out() -> None:
    """A firewall that drops everything the node sends keeps no trace from ending: its table is named as not tried."""
    Kernel().apply(example_pipeline("cluster-ip").full_transaction({}))
    rules = "table ip wall { chain everything { type filter hook output priority 5; meta l4proto 253 drop; }; }"
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
    done = explain("10.96.0.10:80", "--from", "node", "--kernel")
    assert f"not tried: {ROUTES}; the table ip wall\n" in done.out
    assert done.status == 0


@needs_lab
@pytest.mark.skipif(probe().capabilities.wide_maps, reason="this libnftables takes all our rules")
def test_rules_that_the_library_dies_of_are_an_error() -> None:
    """Where libnftables can't live with the rules, the command says so, and lives."""
    where = CHECKOUT / "examples" / "session-affinity"
    options = ("--config", where / "config.yaml", "--node", "node-a", "--ipv6-affinity", "map", "--trace")
    done = nftproxy("explain", "[fd00:96::50]:80", where / "manifests", *options)
    assert done.status == 1
    assert "the process that used libnftables was killed by SIGABRT" in done.err


@needs_lab
@pytest.mark.usefixtures("user_namespaces")
def test_without_namespaces_it_says_what_they_take() -> None:
    """Root without CAP_SYS_ADMIN, as in a container, learns the permissions that a throw-away node needs."""
    command = [sys.executable, "-m", "nftproxy", "explain", "10.96.0.10:80", *map(str, OPTIONS)]
    less = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    done = subprocess.run([*less, *command], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no network namespace: Operation not permitted (it takes CAP_SYS_ADMIN" in done.stderr


def test_without_root_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root's rights the error names the missing rights and their purpose."""
    monkeypatch.setattr("os.geteuid", lambda: 65534)
    done = explain("10.96.0.10:80")
    assert done.status == 1
    assert done.err.startswith("error: NFT414: a trace takes a throw-away node: root is needed")
