"""What the log adds to a warning: its code, in text and in JSON, and a count."""

from __future__ import annotations

import io
import json
import logging

import pytest

from nftproxy.agent.coding import Coding
from nftproxy.agent.metrics import Figures, Metrics
from nftproxy.commands.logs import TEXT, JsonFormatter
from nftproxy.model.addresses import Family
from nftproxy.model.codes import Code


def logged(coding: Coding, formatter: logging.Formatter) -> list[str]:
    """The lines of a log to which something of each sort is written."""
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.addFilter(coding)
    handler.setFormatter(formatter)
    log = logging.getLogger(f"coding-{id(coding)}")
    log.propagate = False
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    log.info("all is %(it)s", {"it": "well"})
    log.warning("%(it)s is lost", {"it": "one"}, extra={"code": Code.CONFLICT_TAKEN})
    log.error("worse", extra={"code": Code.CONFLICT_TAKEN})
    log.warning("from a library")
    log.info("tried again", extra={"code": Code.API_UNREACHABLE})
    return lines.getvalue().splitlines()


def test_a_warning_has_its_code_once() -> None:
    """In text the code stands before the message; a library's warning has one that says so, other lines have none."""
    lines = [line.partition(" ")[2].partition(" ")[2] for line in logged(Coding(), logging.Formatter(TEXT))]
    assert lines == [
        "INFO all is well",
        "WARNING NFT301: one is lost",
        "ERROR NFT301: worse",
        "WARNING NFT015: from a library",
        "INFO tried again",
    ]


def test_in_json_the_code_is_a_field() -> None:
    """The field is there if there is a code, and the message doesn't repeat it."""
    lines = [json.loads(line) for line in logged(Coding(), JsonFormatter())]
    assert [(line.get("code"), line["msg"]) for line in lines] == [
        (None, "all is well"),
        ("NFT301", "one is lost"),
        ("NFT301", "worse"),
        ("NFT015", "from a library"),
        (None, "tried again"),
    ]


@pytest.mark.parametrize("warnings", [{}, {"NFT015": 1, "NFT301": 2}])
def test_warnings_are_counted_by_code(warnings: dict[str, int]) -> None:
    """The metric has a series for each code that was logged, and none for others."""
    coding = Coding()
    if warnings:
        logged(coding, logging.Formatter(TEXT))
    assert list(coding.logged().items()) == list(warnings.items())
    text = Metrics(Family, lambda: Figures(warnings=coding.logged())).text().decode()
    lines = [line for line in text.splitlines() if line.startswith("nftproxy_warnings_total")]
    assert lines == [f'nftproxy_warnings_total{{code="{code}"}} {count}.0' for code, count in warnings.items()]
