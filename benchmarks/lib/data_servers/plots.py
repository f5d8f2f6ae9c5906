"""data-servers.svg: rates per core, memory and waiting time of all loaders that feed a trainer.

Knows: matplotlib, the summary. Does not know: how anything was measured.
"""

from __future__ import annotations

import io
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from cotswold.bench.measure import Document
from lib.data_servers.subject import OURS, SUBJECTS

_PANELS = (
    ("samples_a_second", "samples per second"),
    ("samples_a_core_second", "samples per second and used core"),
    ("memory_mib", "memory of all processes, MiB"),
    ("waited_at_1_2", "waiting, % of the time, at 1/1.2 of the rate"),
)


def drawing(found: Document) -> str:
    """Return bars of medians and lines from least to greatest, with a row of panels for each subject."""
    told: Any = found["summary"]
    machine: Any = found["machine"]
    subjects = list(dict.fromkeys(row["subject"] for row in told["rows"]))
    with mpl.rc_context({"svg.hashsalt": "data-servers", "font.size": 8, "svg.fonttype": "none"}):
        canvas = Canvas(figsize=(13.0, 0.9 + 2.0 * max(1, len(subjects))), layout="constrained")
        for place, subject in enumerate(subjects):
            rows = [row for row in told["rows"] if row["subject"] == subject]
            for column, (name, words) in enumerate(_PANELS):
                axes = canvas.add_subplot(len(subjects), len(_PANELS), place * len(_PANELS) + column + 1)
                _bars(axes, rows, name, 100.0 if name.startswith("waited") else 1.0)
                if column:
                    axes.set_yticklabels([])
                whole = f"{_title(subject)}\n{words}" if column == 0 else words
                axes.set_title(whole, fontsize=8, loc="left")
        canvas.suptitle(
            f"Loaders for a trainer on {machine['cores']} cores of {machine['processor']}", fontsize=9
        )
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _title(subject: str) -> str:
    its = SUBJECTS[subject]
    return f"{its.name}, batches of {its.batch}"


def _bars(axes: Axes, rows: list[Any], name: str, factor: float) -> None:
    for place, row in enumerate(rows):
        spread = row[name]
        if spread is None:
            continue
        middle = factor * spread["median"]
        axes.barh(place, middle, color="#2b6cb0" if row["who"] == OURS else "#a0aec0", height=0.6)
        axes.plot([factor * spread["least"], factor * spread["greatest"]], [place] * 2, color="#1a202c", lw=1)
        axes.annotate(
            f"{middle:,.0f}" if middle >= 10 else f"{middle:.2g}",
            (factor * spread["greatest"], place),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )
    axes.set_yticks(range(len(rows)), [f"{row['who']}" for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.22)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
