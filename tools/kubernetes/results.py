"""The results of Kubernetes' end-to-end tests: from Ginkgo's reports to a line (pure)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
STATES = {"passed": PASSED, "skipped": NOT_RUN, "pending": NOT_RUN}
"""Our words for Ginkgo's states (types.SpecState).  Any other state is a failure: failed, timed out, interrupted."""
WHAT_HAS_A_NAME = "It"
MARK = re.compile(r" ?\[[^]]*\]")


class SpecResult(NamedTuple):
    """The result of a test."""

    group: str
    """The outermost container, such as "Services"."""
    name: str
    """Without marks such as "[Slow]"."""
    state: str
    reason: str
    """Why it failed, or was not run, in a line; else "". """


def read(report: Iterable[Mapping[str, Any]], skips: Mapping[str, str], focus: str = "") -> Iterator[SpecResult]:
    """The results of sig-network's tests that ran, or that the skip list names.

    Args:
        report: Ginkgo's JSON report, decoded.
        skips: reasons, by a regular expression for the full names of the tests.
        focus: a regular expression for the full names of the tests that were asked for.
    """
    for suite in report:
        for spec in suite["SpecReports"] or []:
            texts = [*(spec["ContainerHierarchyTexts"] or []), spec["LeafNodeText"]]
            full = " ".join(texts)
            skipped = next((reason for text, reason in skips.items() if re.search(text, full)), "")
            reason = spec.get("Failure", {}).get("Message", "") or skipped
            if (
                spec["LeafNodeType"] == WHAT_HAS_A_NAME
                and texts[0].startswith("[sig-network]")
                and re.search(focus, full)
                and (spec["State"] != "skipped" or reason)
            ):
                yield _result(texts, spec, reason)


def _result(texts: list[str], spec: Mapping[str, Any], reason: str) -> SpecResult:
    state = STATES.get(spec["State"], FAILED)
    group, *rest = filter(None, (MARK.sub("", text).strip() for text in texts))
    line = "" if state == PASSED else " ".join(reason.split())[:200]
    return SpecResult(group, " ".join(rest), state, line)


def summary(results: Iterable[SpecResult]) -> str:
    """The number of tests by state in a line, each that failed, and why tests were not run."""
    given = sorted(results)
    counts = Counter(each.state for each in given)
    failed = [each.name for each in given if each.state == FAILED]
    reasons = Counter(each.reason for each in given if each.state == NOT_RUN)
    return "; ".join(
        [
            f"{counts[PASSED]} passed",
            *([f"{len(failed)} failed ({', '.join(failed)})"] if failed else []),
            *(f"{number} not run ({reason})" for reason, number in sorted(reasons.items())),
        ]
    )
