"""Two figures of the result of `bench kernels`: rates of layers, and rates by the size of a matrix.

Knows: matplotlib, colours that are legible on light and dark pages. Does not know: the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from cotswold.bench.kernels.baseline_jax import JAX
from cotswold.bench.kernels.baselines import AUTOGRAD, BOTH, FORWARD, UNFOLD
from cotswold.bench.kernels.ceilings import NUMPY, ONEDNN, TORCH_MM
from cotswold.bench.kernels.stacks import STEP
from cotswold.bench.measure import Document
from cotswold.bench.row import COTSWOLD

INK = "#6e7781"
"""A contrast of 4.5 on white and 4.2 on a dark page."""
BLUE, _ORANGE, _VIOLET, _GREEN = "#2f81d6", "#d9822b", "#8a6fc9", "#3f9a5b"
_BARS = {"Cotswold": (BLUE, (COTSWOLD,)), "PyTorch": (_ORANGE, (UNFOLD, AUTOGRAD)), "JAX": (_VIOLET, (JAX,))}
_LINES = {COTSWOLD: (BLUE, "o"), ONEDNN: (_GREEN, "s"), NUMPY: (_VIOLET, "^"), TORCH_MM: (_ORANGE, "D")}
_PANELS = {"forward": ("Wx", FORWARD), "training": (STEP, BOTH, "value and gradient")}
_GROUPS = {
    "paper": "Stacks of Coates et al.",
    "untied": "Untied layers, NCHW in and out",
    "dense": "Bunyip's network",
}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kernels",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}
_BASELINE_NAMES = (UNFOLD, AUTOGRAD, JAX)
_CEILING = "fastest dense product"
WIDE_INCHES, _ROW_INCHES, _BAR = 8.3, 0.37, 0.27


@dataclass(frozen=True)
class _Line:
    """A line of the figure: a heading, or a shape with the rows of its panels."""

    label: str
    rows: Mapping[str, Any] | None


def draw(kernels: Document, file: Path) -> bool:
    """Draw bars of GFLOP/s by shape, for the largest number of threads; a line marks the dense product.

    The file's suffix decides the format (.svg, .png). Returns False if none of it was measured.
    """
    rows, threads = _widest(kernels)
    lines = _lines(rows)
    if not lines:
        return False
    with mpl.rc_context({**STYLE, "axes.spines.left": False, "ytick.major.size": 0}):
        figure = Figure(figsize=(WIDE_INCHES, 1.3 + _ROW_INCHES * len(lines)), layout="constrained")
        axes = figure.subplots(1, len(_PANELS), sharey=True, sharex=True)
        for axis, panel in zip(axes, _PANELS, strict=True):
            _panel(axis, panel, lines)
            axis.axvline(_ceiling(rows), color=INK, linewidth=1.4, linestyle="--", label=_CEILING)
        places = [len(lines) - 1 - number for number in range(len(lines))]
        axes[0].set_yticks(places, [line.label for line in lines])
        for tick, line in zip(axes[0].get_yticklabels(), lines, strict=True):
            tick.set_fontweight("bold" if line.rows is None else "normal")
        figure.suptitle(_title(rows, threads, kernels["dense_size"]), fontsize=10)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        save(figure, file)
    return True


def draw_curve(kernels: Document, file: Path) -> bool:
    """Draw GFLOP/s of a square product by its size, a line per library (Aberdeen et al. 2000, figure 4)."""
    rows, threads = _widest(kernels)
    rows = [row for row in rows if row["group"] == "curve"]
    if not rows:
        return False
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDE_INCHES * 0.75, 3.8), layout="constrained")
        axis = figure.subplots()
        axis.patch.set_alpha(0)
        for by, (colour, marker) in _LINES.items():
            points = [
                (int(row["shape"].split()[0]), row["figures"][by]) for row in rows if by in row["figures"]
            ]
            sizes = [size for size, _ in points]
            middle = [one["median"] for _, one in points]
            axis.plot(sizes, middle, color=colour, marker=marker, markersize=4, label=by)
            quartiles = [one["lower"] for _, one in points], [one["upper"] for _, one in points]
            axis.fill_between(sizes, *quartiles, color=colour, alpha=0.15, linewidth=0)
        axis.set_xscale("log", base=2)
        sizes = [int(row["shape"].split()[0]) for row in rows]
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.set_ylim(0)
        axis.set_xlabel("rows and columns of the matrices")
        axis.set_ylabel("GFLOP/s")
        axis.grid(color=INK, alpha=0.2, linewidth=0.6)
        axis.set_title(f"Product of two square float32 matrices, {_threads(threads)}", fontsize=10)
        figure.legend(loc="outside lower center", ncols=len(_LINES))
        save(figure, file)
    return True


def _lines(rows: Sequence[Any]) -> list[_Line]:
    found: list[_Line] = []
    for group, heading in _GROUPS.items():
        shapes: dict[tuple[str, int], dict[str, Any]] = {}
        for row in rows:
            panel = next((name for name, names in _PANELS.items() if row["operation"] in names), None)
            if row["group"] == group and panel is not None:
                shapes.setdefault((row["shape"], row["images"]), {})[panel] = row
        if shapes:
            found.append(_Line(heading, None))
            found += [_Line(f"{shape}, batch {images}", panels) for (shape, images), panels in shapes.items()]
    return found


def _panel(axis: Any, panel: str, lines: Sequence[_Line]) -> None:
    axis.set_title("Forward" if panel == "forward" else "Training: forward and backward", fontsize=10)
    axis.set_ylim(-0.6, len(lines) - 0.4)
    axis.patch.set_alpha(0)
    axis.set_xlabel("GFLOP/s")
    axis.grid(axis="x", color=INK, alpha=0.2, linewidth=0.6)
    axis.set_axisbelow(True)
    shown = [
        (len(lines) - 1 - number, line.rows[panel])
        for number, line in enumerate(lines)
        if line.rows is not None and panel in line.rows
    ]
    for place, (label, (colour, names)) in enumerate(_BARS.items()):
        bars = [(y, found) for y, row in shown if (found := _first(row["figures"], names)) is not None]
        ys, widths = [y + _BAR * (1 - place) for y, _ in bars], [one["median"] for _, one in bars]
        whiskers = (
            [one["median"] - one["lower"] for _, one in bars],
            [one["upper"] - one["median"] for _, one in bars],
        )
        style = {"ecolor": INK, "elinewidth": 0.8}
        axis.barh(ys, widths, height=_BAR, color=colour, label=label, xerr=whiskers, error_kw=style)
    for y, row in shown:
        end = row["figures"][COTSWOLD]["upper"], y + _BAR
        axis.annotate(_rate_label(row), end, (4, 0), textcoords="offset points", va="center")


def _rate_label(row: Any) -> str:
    """Our rate, and its multiple of the better baseline."""
    times = [one["ratio"]["median"] for one in row["verdicts"] if one["against"] in _BASELINE_NAMES]
    return " ".join([f"{row['figures'][COTSWOLD]['median']:.0f}", *(f"({one:.1f}x)" for one in times)])


def _ceiling(rows: Sequence[Any]) -> float:
    """The rate of the fastest dense product, a median over the rows."""
    found = [spread["median"] for row in rows for by, spread in row["figures"].items() if _is_ceiling(by)]
    return median(found) if found else 0.0


def _is_ceiling(by: str) -> bool:
    return by.startswith("ceiling, ")


def _first(figures: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((figures[name] for name in names if name in figures), None)


def _widest(kernels: Document) -> tuple[list[Any], int]:
    """The rows of the run with the most threads."""
    rows = kernels["rows"]
    assert isinstance(rows, list), "a result has rows"
    threads = max((row["threads"] for row in rows), default=1)
    return [row for row in rows if row["threads"] == threads], threads


def _title(rows: Sequence[Any], threads: int, size: object) -> str:
    names = [by.partition(", ")[2] for row in rows for by in row["figures"] if _is_ceiling(by)]
    library = max(sorted(set(names)), key=names.count) if names else "none"
    return (
        f"GFLOP/s of float32 on {_threads(threads)}; in brackets, times the better of PyTorch and JAX\n"
        f"dashed: the fastest dense matrix product of the run ({library}, {size} x {size})"
    )


def _threads(count: int) -> str:
    return f"{count} thread" if count == 1 else f"{count} threads"


def save(figure: Figure, file: Path) -> None:
    """Write a figure without a background; the same figure gives the same bytes."""
    figure.patch.set_alpha(0)
    metadata = {"Date": None} if file.suffix == ".svg" else None
    figure.savefig(file, transparent=True, metadata=metadata, dpi=130)


PLOTS: dict[str, Callable[[Document, Path], bool]] = {
    "kernels.svg": draw,
    "kernels-curve.svg": draw_curve,
}
"""The figures of a result, by file name."""
