"""The results of Kubernetes' end-to-end tests: from Ginkgo's reports to a table (pure)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tools.bench.figures import markdown

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
    seconds: float
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
    return SpecResult(group, " ".join(rest), state, spec["RunTime"] / 1e9, line)


def merged(earlier: Iterable[SpecResult], later: Iterable[SpecResult]) -> list[SpecResult]:
    """Merge the results of two runs.  A test of both has the later result, unless it wasn't run then."""
    found = {(each.group, each.name): each for each in earlier}
    for each in later:
        if each.state != NOT_RUN or (each.group, each.name) not in found:
            found[each.group, each.name] = each
    return sorted(found.values())


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


def table(results: Iterable[SpecResult]) -> str:
    """The number of tests of each group by state, then each test that failed, and why tests were not run."""
    given = sorted(results)
    counts: dict[str, Counter[str]] = {}
    for each in given:
        counts.setdefault(each.group, Counter())[each.state] += 1
    counts["all"] = sum(counts.values(), Counter())
    states = (PASSED, FAILED, NOT_RUN)
    rows = [(group, *(str(found[state]) for state in states)) for group, found in counts.items()]
    failed = [(FAILED, f"{each.group}: {each.name}", each.reason) for each in given if each.state == FAILED]
    reasons = Counter(each.reason for each in given if each.state == NOT_RUN)
    not_run = [(NOT_RUN, f"{number} tests", reason) for reason, number in sorted(reasons.items())]
    return "\n".join([markdown(("tests", *states), rows), markdown(("result", "test", "why"), [*failed, *not_run])])
