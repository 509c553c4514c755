"""Figures as a picture: docs/change-latency.svg, the time of a change."""

from __future__ import annotations

import json
import re

from tests.support.processes import CHECKOUT
from tools.bench import report
from tools.figures import marked_tables

PICTURE = CHECKOUT / "docs" / "change-latency.svg"
SIZES = (100, 1_000, 10_000, 40_000, 100_000)
AGENT_P50, AGENT_P99 = "nftproxy, p50", "nftproxy, p99"
REAL_SERVER = "{}, a real API server, p50"
STYLES = {
    REAL_SERVER.format("kube-proxy 1.36.2, nftables mode"): ("s", "tab:gray"),
    REAL_SERVER.format("nftproxy"): ("^", "tab:orange"),
    AGENT_P99: ("o--", "tab:blue"),
    AGENT_P50: ("o-", "tab:blue"),
}
"""Marker with line, and colour, by label."""

Points = list[tuple[int, float]]
"""Numbers of Services, and the milliseconds of a change."""


def latency_points(page: str) -> dict[str, Points]:
    """Return the points of the picture by label, from the tables of docs/performance.md."""
    tables = marked_tables(page)
    found: dict[str, Points] = {label: [] for label in STYLES}
    for services, p50, p99 in re.findall(
        r"^\| ([\d,]+) x \d+ \| ([\d.]+) ms; ([\d.]+) ms", tables["growth"], re.MULTILINE
    ):
        number = int(services.replace(",", ""))
        found[AGENT_P50].append((number, float(p50)))
        found[AGENT_P99].append((number, float(p99)))
    header, _, row, *_ = re.findall(r"^\|.*", tables["beside-kube-proxy"], re.MULTILINE)
    columns, cells = (line.strip("| ").split(" | ") for line in (header, row))
    number = int(columns[0].split()[0].replace(",", ""))
    for proxy, cell in zip(columns[1:], cells[1:], strict=True):
        found[REAL_SERVER.format(proxy)] = [(number, each) for each in _milliseconds(cell.partition(";")[0])]
    return found


def _milliseconds(cell: str) -> list[float]:
    """The times in a cell such as "3.5 and 3.8 s"."""
    *texts, unit = cell.replace("and ", "").split()
    return [float(text) * {"ms": 1.0, "s": 1e3}[unit] for text in texts]


def draw() -> None:
    """Draw docs/change-latency.svg from the tables of the page, and write its points into its description."""
    import matplotlib as mpl  # of the extra `bench`, which only this needs

    mpl.use("svg")
    # The same figures make the same bytes, and text stays text.
    mpl.rcParams |= {"svg.hashsalt": "nftproxy", "svg.fonttype": "none"}
    from matplotlib import pyplot

    points = latency_points(report.DOCUMENT.read_text())
    picture, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for label, (style, colour) in STYLES.items():
        axes.plot(*zip(*points[label], strict=True), style, color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlabel="Services (10 endpoints each; 40,000: 5; 100,000: 2)")
    axes.set(ylabel="ms from the API's answer to the commit", title="One EndpointSlice changes")
    axes.set_xticks(SIZES, [f"{size:,}" for size in SIZES])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(visible=True, which="major", alpha=0.3)
    picture.legend(loc="outside lower center", ncols=2, fontsize="small")  # within, it would cover a line
    picture.savefig(PICTURE, metadata={"Date": None, "Description": json.dumps(points)})
    pyplot.close(picture)
