"""Which tests may kill a mutant: a file or directory more is a line more."""

from __future__ import annotations

from typing import NamedTuple

TEMPLATES = (
    "templates/counts.nft.j2",
    "templates/draw.nft.j2",
    "templates/endpoints.nft.j2",
    "templates/screen.nft.j2",
    "templates/screened.nft.j2",
    "templates/service.nft.j2",
    "templates/table.nft.j2",
)
MODULES = tuple(
    f"nftproxy/{name}.py"
    for name in (
        "policy/compile", "policy/fronts", "policy/endpoints", "policy/claims", "policy/flows", "rules/ruleset",
        "rules/transaction", "pipeline", "policy/state", "api/services", "api/resources",
        "policy/health_checks", "policy/localhost", "policy/screening", "policy/silence", "policy/local_sources",
        "policy/weights", "policy/maglev", "policy/placement", "policy/numbers",
        "api/annotations", "agent/health", "agent/inbox", "agent/quarantine",
    )
)  # fmt: skip
TARGETS = TEMPLATES + MODULES
"""What is damaged."""


class Stage(NamedTuple):
    """Tests that are run together; a mutant that survives one stage comes to the next.

    The order of `paths` is where to begin; what kills most goes to the front.  Of a file whose tests share what a
    fixture has made, all are run if one of them runs the damaged line.
    """

    name: str
    paths: tuple[str, ...]
    shares_fixtures: bool


UNIT = Stage(
    "unit",
    (
        "tests/policy/test_weights.py",
        "tests/policy/test_maglev.py",
        "tests/policy/test_placement.py",
        "tests/policy/test_claims.py",
        "tests/policy/test_fronts.py",
        "tests/policy/test_limits.py",
        "tests/policy/test_screening.py",
        "tests/policy/test_numbers.py",
        "tests/policy/test_silence.py",
        "tests/policy/test_local_sources.py",
        "tests/policy/compile",
        "tests/policy/test_kept.py",
        "tests/policy/test_kept_slots.py",
        "tests/agent/test_quarantine.py",
        "tests/agent/test_health.py",
        "tests/agent/test_inbox.py",
        "tests/policy/test_endpoints.py",
        "tests/policy/test_flows.py",
        "tests/policy/test_health_checks.py",
        "tests/policy/test_localhost.py",
        "tests/api/test_annotations.py",
        "tests/api/test_parse.py",
        "tests/system/fuzz/test_histories.py",
        "tests/api/test_services.py",
        "tests/api/test_slices.py",
        "tests/test_pipeline.py",
        "tests/rules/test_render.py",
        "tests/explanation/test_listing.py",
        "tests/rules/test_ruleset.py",
        "tests/rules/test_transaction.py",
        "tests/api/test_resources.py",
        "tests/policy/test_state.py",
    ),
    shares_fixtures=False,
)
CONFORMANCE = Stage("conformance", ("tests/conformance/test_templates_conform.py",), shares_fixtures=False)
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
    """What mutants of a file go through: policy can be seen at rest, templates are tried with packets alone."""
    return (CONFORMANCE, PACKETS, RACES) if file in TEMPLATES else (UNIT, PACKETS)
