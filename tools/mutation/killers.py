"""The files to damage, and the tests that may kill their mutants."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[2]

TEMPLATES = tuple(sorted(path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "templates").rglob("*.nft.j2")))
WHOLE_FOLDERS = ("nftproxy/policy", "nftproxy/rules", "nftproxy/extensions")
SINGLE_MODULES = (
    "nftproxy/pipeline.py",
    "nftproxy/api/annotation_parsers.py",
    "nftproxy/api/resources.py",
    "nftproxy/api/services.py",
    "nftproxy/agent/reporting/event_series.py",
    "nftproxy/agent/reporting/health.py",
    "nftproxy/agent/reporting/occurrences.py",
    "nftproxy/agent/sync/inbox.py",
    "nftproxy/agent/sync/quarantine.py",
    "nftproxy/agent/sync/turns.py",
)
"""Modules elsewhere that decide: the parsers of a Service's fields, and the agent's pure modules."""
_IN_FOLDERS = (
    path for folder in WHOLE_FOLDERS for path in (CHECKOUT / folder).rglob("*.py") if path.parent.name != "agent"
)
MODULES = (*sorted(path.relative_to(CHECKOUT).as_posix() for path in _IN_FOLDERS), *SINGLE_MODULES)
TARGETS = TEMPLATES + MODULES


class Stage(NamedTuple):
    """Tests that run together.  A mutant that survives a stage goes on to the next stage.

    In a stage that shares fixtures, the tests of a file share a fixture's result.  So if a test of the file runs the
    damaged line, all tests of the file are run.
    """

    name: str
    paths: tuple[str, ...]
    shares_fixtures: bool = False


UNIT = Stage(
    "unit",
    (
        "tests/policy",
        "tests/rules",
        "tests/extensions/algorithms",
        "tests/extensions/client_limits",
        "tests/extensions/counts/test_counted_fronts.py",
        "tests/extensions/external_addresses",
        "tests/extensions/failover/test_gone_addresses.py",
        "tests/extensions/failover/test_hairpins.py",
        "tests/extensions/failover/test_silence.py",
        "tests/extensions/least_connections/test_balance.py",
        "tests/extensions/localhost/test_forwardings.py",
        "tests/test_pipeline.py",
        "tests/api/test_annotation_parsers.py",
        "tests/api/test_parse.py",
        "tests/api/test_resources.py",
        "tests/api/test_services.py",
        "tests/api/test_slices.py",
        "tests/agent/reporting/test_event_recorder.py",
        "tests/agent/reporting/test_event_series.py",
        "tests/agent/reporting/test_health.py",
        "tests/agent/sync/test_inbox.py",
        "tests/agent/sync/test_quarantine.py",
        "tests/agent/sync/test_turns.py",
        "tests/agent/test_fairness.py",
        "tests/explanation/test_listing.py",
        "tests/system/fuzz/test_histories.py",
    ),
)
CONFORMANCE = Stage("conformance", ("tests/conformance/test_templates_conform.py",))
PACKETS = Stage(
    "packets",
    (
        "tests/system/test_matrix.py",
        "tests/system/packets",
        "tests/system/test_affinity.py",
        "tests/system/fuzz/test_packets.py",
    ),
    shares_fixtures=True,
)
RACES = Stage("races", ("tests/system/test_atomicity.py",), shares_fixtures=True)
STAGES = (UNIT, CONFORMANCE, PACKETS, RACES)


def stages_for(file: str) -> tuple[Stage, ...]:
    """Return the stages for mutants of a file.  Mutants of templates are tried with packets alone."""
    return (CONFORMANCE, PACKETS, RACES) if file in TEMPLATES else (UNIT, PACKETS)
