"""What is tried on each kernel."""

from __future__ import annotations

from typing import NamedTuple

PYTEST = "python -m pytest -p no:cacheprovider -o timeout=3600 --tb=short -m 'slow or not slow'"
"""All tests, slow ones too.  A test's own limit is for a machine that hangs, and an emulated processor is ten times
slower.
"""
OF_PYTEST = r"=+ (\d.*) in [\d.]+s.*"


class Subject(NamedTuple):
    """A trial of nftproxy that runs on each kernel.

    Attributes:
        command: what is run, in the checkout, by a shell.
        result: a regular expression for the line of the output that has the result, in its first group.
    """

    command: str
    result: str = OF_PYTEST


def _tests(*paths: str, before: str = "") -> Subject:
    return Subject(f"{before}{PYTEST} {' '.join(paths)}")


FAST = "NFTPROXY_FAST_PATH=1 "
"""With it a lab establishes its connections and tries them on the fast path, too, and agents have one."""
ON_FAST_PATH = (
    "gone",
    "hairpin",
    "masquerading",
    "node_ports",
    "policies",
    "refused",
    "unanswered",
    "virtual_addresses",
)
"""Subjects of tests/system/packets."""
AGENTS = (
    "e2e/test_affinity.py::test_affinity_ends_with_the_endpoint",
    "e2e/test_affinity.py::test_affinity_survives_a_restart",
    "e2e/test_conntrack.py::test_fewer_servers",
    "e2e/test_conntrack.py::test_stale_at_start",
    "e2e/test_counts.py",
    "e2e/test_silence.py::test_node_that_dies_is_left_out",
    "e2e/test_silence.py::test_refused_connections_fail_for_nobody",
    "faults/test_configuration.py::test_a_good_configuration_is_taken_over_without_a_connection_lost",
    "faults/test_health.py::test_all_is_well",
    "faults/test_health.py::test_health_check_node_port",
    "faults/test_life.py::test_a_restart_disturbs_nobody",
    "faults/test_repair.py::test_a_change_at_the_same_time",
    "faults/test_top.py::test_connections_have_their_services_names",
)
"""Tests of agents in tests/system: a few, as agents start slowly on an emulated processor."""

IMAGE = "image"
"""The subject that needs the container image of the machine's architecture (tools/image)."""

SUBJECTS = {
    "rules": _tests("tests/kernel/test_capabilities.py tests/kernel/test_ruleset_check.py"),
    "packets, in short": _tests("tests/system/packets/test_policies.py"),
    "packets": _tests("-n 2 tests/system/packets"),
    "examples": _tests("tests/test_examples.py"),
    "affinity": _tests("tests/system/e2e/test_affinity.py"),
    "restart": _tests("tests/system/faults/test_start.py tests/system/faults/test_first_load.py"),
    "silent endpoints": _tests("tests/system/e2e/test_silence.py"),
    "conformance": Subject("python -m nftproxy conformance --examples 2", r"(\d.* connections.*)"),
    "fast path": _tests("-n 2 tests/system/e2e/test_fast_path.py"),
    "packets on the fast path": _tests("-n 2 tests/system/packets", before=FAST),
    "packets on the fast path, in short": _tests(
        *(f"tests/system/packets/test_{each}.py" for each in ON_FAST_PATH), before=FAST
    ),
    "agents with the fast path": _tests(
        "-n 2 --dist loadfile", *(f"tests/system/{each}" for each in AGENTS), before=FAST
    ),
    "conformance on the fast path": Subject(
        "python -m nftproxy conformance --examples 2 --fast-path", r"(\d.* connections.*)"
    ),
    "demo": Subject("python -m tools.demo", r"(All promises were kept|\d+ promises were broken).*"),
    IMAGE: _tests("tests/system/test_image.py -k 'not pinned'"),
    "machine": _tests("tests/system/machine"),
}
"""Subjects by name, in the order of the page's columns."""
