"""Figures as pictures: docs/change-latency.svg, the time of a change, and docs/algorithms.svg, where connections go."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.processes import CHECKOUT
from tools.bench import changes, steering
from tools.bench.figures import Figures

PICTURE = CHECKOUT / "docs" / "change-latency.svg"
OTHER_SHAPE = "a chain per Service: libnftables and kernel alone, p50"
SIZES = (100, 1_000, 10_000, 40_000)
KUBE_PROXY = {10_000: 3.9}
"""kube-proxy 1.36.2 in nftables mode with a real API server, in seconds, on a machine where nftproxy takes 0.9 ms."""


ALGORITHMS = CHECKOUT / "docs" / "algorithms.svg"


def draw(figures: Figures) -> None:
    """Write the pictures that there are figures for."""
    import matplotlib as mpl  # of the extra `bench`, which only this needs

    mpl.use("svg")
    mpl.rcParams |= {
        "svg.hashsalt": "nftproxy",
        "svg.fonttype": "none",
    }  # the same figures make the same bytes, and text stays text
    if any(name.startswith("latency/") for name in figures):
        _draw_latency(figures)
    if any(name.startswith("steering/") for name in figures):
        _draw_algorithms(figures)


def _draw_algorithms(figures: Figures) -> None:
    from matplotlib import pyplot

    picture, (shares, moves) = pyplot.subplots(1, 2, figsize=(10, 4))
    for row, algorithm in enumerate(steering.SPREAD):
        parts = [100 * figures[steering.share(algorithm, number)] for number in range(steering.ENDPOINTS)]
        shares.plot(parts, [row] * len(parts), "o", alpha=0.6, color="tab:blue")
    shares.axvline(100 / steering.ENDPOINTS, color="tab:gray", linestyle=":")
    shares.set_yticks(range(len(steering.SPREAD)), [each.value for each in steering.SPREAD])
    shares.invert_yaxis()
    shares.set(xlim=(0, 200 / steering.ENDPOINTS), xlabel=f"% of {steering.CLIENTS:,} connections")
    shares.set(title=f"What each of {steering.ENDPOINTS} endpoints gets")
    for algorithm, style in zip(steering.HASHES, ("s--", "o-"), strict=True):
        points = {size: 100 * figures[steering.moved(algorithm, size)] for size in steering.SIZES}
        moves.plot(list(points), list(points.values()), style, label=algorithm.value)
    moves.plot(steering.SIZES, [100 / size for size in steering.SIZES], ":", color="tab:gray", label="1/N")
    moves.set(xscale="log", xlabel="endpoints (N)", ylabel="% of clients that move", ylim=(0, None))
    moves.set(title="The first of N endpoints goes")
    moves.set_xticks(steering.SIZES, [str(size) for size in steering.SIZES])
    moves.minorticks_off()
    moves.legend(fontsize="small")
    for axes in (shares, moves):
        axes.grid(visible=True, which="major", alpha=0.3)
    picture.tight_layout()
    picture.savefig(ALGORITHMS, metadata={"Date": None})
    pyplot.close(picture)


def _draw_latency(figures: Figures) -> None:
    from matplotlib import pyplot

    picture, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for label, style, colour, points in (
        ("kube-proxy 1.36.2, nftables mode, on a faster machine", "s", "tab:gray", KUBE_PROXY),
        (OTHER_SHAPE, "^-.", "tab:orange", _found(figures, "shape/{}/per Service/change/p50")),
        ("nftproxy, p99", "o--", "tab:blue", _found(figures, f"latency/{{}}/{changes.ALL}/p99")),
        ("nftproxy, p50", "o-", "tab:blue", _found(figures, f"latency/{{}}/{changes.ALL}/p50")),
    ):
        axes.plot(list(points), [1e3 * seconds for seconds in points.values()], style, color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlabel="Services (10 endpoints each; 40,000: 5)")
    axes.set(ylabel="ms from the API's answer to the commit", title="One EndpointSlice changes")
    axes.set_xticks(SIZES, [f"{size:,}" for size in SIZES])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(visible=True, which="major", alpha=0.3)
    picture.legend(loc="outside lower center", ncols=2, fontsize="small")  # within, it would cover a line
    picture.savefig(PICTURE, metadata={"Date": None})
    pyplot.close(picture)


def _found(figures: Figures, name: str) -> Mapping[int, float]:
    return {size: figures[name.format(size)] for size in SIZES if name.format(size) in figures}
