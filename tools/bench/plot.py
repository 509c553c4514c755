"""The time of a change against the size of the cluster, as a picture: docs/change-latency.svg."""

from __future__ import annotations

from collections.abc import Mapping

from tools.bench import latency
from tools.bench.figures import Figures
from tools.bench.processes import CHECKOUT

PICTURE = CHECKOUT / "docs" / "change-latency.svg"
OTHER_SHAPE = "a chain per Service: libnftables and kernel alone, p50"
SIZES = (100, 1_000, 10_000, 40_000)
QUOTED = {1_000: 0.2, 10_000: 7.5}
"""kube-proxy 1.36.2 in nftables mode with a real API server, p50 in seconds; measured before, and quoted."""


def draw(figures: Figures) -> None:
    """Write the picture."""
    import matplotlib as mpl  # of the extra `bench`, which only this needs

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "nftproxy", "svg.fonttype": "none"}  # the same figures make the same bytes; text
    from matplotlib import pyplot

    picture, axes = pyplot.subplots(figsize=(7, 4))
    for label, style, colour, points in (
        ("kube-proxy 1.36.2, nftables mode, p50 (quoted)", "s:", "tab:gray", QUOTED),
        (OTHER_SHAPE, "^-.", "tab:orange", _found(figures, "shape/{}/per Service/change/p50")),
        ("nftproxy, p99", "o--", "tab:blue", _found(figures, f"latency/{{}}/{latency.ALL}/p99")),
        ("nftproxy, p50", "o-", "tab:blue", _found(figures, f"latency/{{}}/{latency.ALL}/p50")),
    ):
        axes.plot(list(points), [1e3 * seconds for seconds in points.values()], style, color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlabel="Services (10 endpoints each; 40,000: 5)")
    axes.set(ylabel="ms from the API's answer to the commit", title="One EndpointSlice changes")
    axes.set_xticks(SIZES, [f"{size:,}" for size in SIZES])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize="small")
    picture.tight_layout()
    picture.savefig(PICTURE, metadata={"Date": None})
    pyplot.close(picture)


def _found(figures: Figures, name: str) -> Mapping[int, float]:
    return {size: figures[name.format(size)] for size in SIZES if name.format(size) in figures}
