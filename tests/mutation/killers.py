"""Which tests may kill a mutant: a file or directory more is a line more."""

from __future__ import annotations

from typing import NamedTuple

TEMPLATES = (
    "templates/draw.nft.j2",
    "templates/endpoints.nft.j2",
    "templates/service.nft.j2",
    "templates/table.nft.j2",
)
MODULES = tuple(
    f"nftproxy/{name}.py"
    for name in (
        "compile", "endpoints", "claims", "flows", "ruleset", "pipeline", "state", "services", "selection", "health",
        "culprits",
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
        "tests/test_claims.py",
        "tests/compile",
        "tests/test_culprits.py",
        "tests/test_endpoints.py",
        "tests/test_flows.py",
        "tests/test_health.py",
        "tests/test_parse.py",
        "tests/fuzz/test_histories.py",
        "tests/test_parse_services.py",
        "tests/test_parse_slices.py",
        "tests/test_pipeline.py",
        "tests/test_render.py",
        "tests/test_review.py",
        "tests/test_ruleset.py",
        "tests/test_selection.py",
        "tests/test_state.py",
    ),
    shares_fixtures=False,
)
CONFORMANCE = Stage("conformance", ("tests/test_templates_conform.py",), shares_fixtures=False)
PACKETS = Stage(
    "packets",
    ("tests/test_matrix.py", "tests/packets", "tests/test_affinity.py", "tests/fuzz/test_packets.py"),
    shares_fixtures=True,
)
RACES = Stage("races", ("tests/test_atomicity.py",), shares_fixtures=True)
STAGES = (UNIT, CONFORMANCE, PACKETS, RACES)


def stages_for(file: str) -> tuple[Stage, ...]:
    """What mutants of a file go through: policy can be seen at rest, templates are tried with packets alone."""
    return (CONFORMANCE, PACKETS, RACES) if file in TEMPLATES else (UNIT, PACKETS)
