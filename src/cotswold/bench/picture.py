"""The result of `bench kernels` as one picture.

Knows: matplotlib, colours that are legible on light and dark pages. Does not know: how anything was measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from cotswold.bench.measure import Document
from cotswold.bench.operations import JAX, OURS, PRODUCTS, UNFOLD

_INK = "#6e7781"
"""A contrast of 4.5 on white and 4.2 on a dark page."""
_COLOURS = {OURS: "#2f81d6", UNFOLD: "#d9822b", JAX: "#8a6fc9"}
_PANELS = {"Wx": "Wx, forward", "W'x": "W'x, back to the input", "δx'": "δx', gradient of filters"}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kernels",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "ytick.major.size": 0,
    "legend.frameon": False,
}
_BAR, _ROW_INCHES = 0.27, 0.42


def draw(kernels: Document, file: Path) -> None:
    """Bars: each product's share of the dense product, shape by shape, on the greatest number of threads.

    Whiskers are quartiles. The kind of picture follows from the name of the file (.svg, .png).
    """
    rows: list[Any] = list(_list(kernels["shapes"]))
    threads = max(row["threads"] for row in rows)
    rows = [row for row in rows if row["threads"] == threads][::-1]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9, 1.6 + _ROW_INCHES * len(rows)), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.subplots(1, len(PRODUCTS), sharey=True, sharex=True)
        for number, (product, axis) in enumerate(zip(PRODUCTS, axes, strict=True)):
            _panel(axis, product, rows)
            if number == 0:
                axis.set_yticks(range(len(rows)), [f"{row['shape']}, {row['images']} images" for row in rows])
        figure.suptitle(_title(rows, threads), fontsize=10)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        figure.savefig(
            file, transparent=True, metadata={"Date": None} if file.suffix == ".svg" else None, dpi=130
        )


def _title(rows: list[Any], threads: int) -> str:
    best = max(row["dense"]["gflops"][row["dense"]["fastest"]]["median"] for row in rows)
    whole = f"{threads} thread{'s' if threads > 1 else ''}"
    return (
        f"Untied filters on {whole}: share of the fastest dense product on this machine\n"
        f"(100 % = {rows[-1]['dense']['fastest']}, up to {best:.0f} GFLOP/s)"
    )


def _panel(axis: Any, product: str, rows: list[Any]) -> None:
    axis.set_title(_PANELS[product], fontsize=10)
    axis.set_ylim(-0.6, len(rows) - 0.4)
    axis.patch.set_alpha(0)
    axis.axvline(100, color=_INK, linewidth=1, linestyle=":")
    axis.set_xlabel("% of the dense product")
    axis.grid(axis="x", color=_INK, alpha=0.25, linewidth=0.6)
    axis.set_axisbelow(True)
    for place, (by, colour) in enumerate(_COLOURS.items()):
        shown = [(y, share) for y, row in enumerate(rows) if (share := _share(row, product, by)) is not None]
        if not shown:
            continue
        middle = [100 * share["median"] for _, share in shown]
        below = [100 * (share["median"] - share["lower"]) for _, share in shown]
        above = [100 * (share["upper"] - share["median"]) for _, share in shown]
        axis.barh(
            [y + _BAR * (1 - place) for y, _ in shown],
            middle,
            height=_BAR,
            color=colour,
            label=by,
            xerr=(below, above),
            error_kw={"ecolor": _INK, "elinewidth": 0.8},
        )


def _share(row: Any, product: str, by: str) -> Any:
    found = next(one for one in row["operations"] if one["operation"] == product)
    return found["of_ceiling"].get(by)


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value
