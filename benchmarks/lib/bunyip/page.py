"""The experiment as one page: table 1, curves, speed and price, and images of the set and of misread samples.

Knows: which figures are shown, and their captions. Does not know: how they were measured, HTML.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas

import cotswold
from cotswold.analysis.images import png_uri
from cotswold.analysis.plots import Line, Palette, draw, plot
from cotswold.analysis.report.blocks import (
    Block,
    Drawing,
    Facts,
    Figure,
    FigureGrid,
    Image,
    Page,
    PageSection,
    Paragraph,
    Table,
    TableCell,
    row,
)
from cotswold.analysis.report.build import page_html
from cotswold.data.datasets.japanese_ocr import JapaneseSet, contact_sheet
from cotswold.ui.format import count, duration, percent, scaled, three_figures
from lib.bunyip import paper
from lib.bunyip.error_rates import PARTS

Told = Mapping[str, Any]
_METHODS = ("CG, squared error", "CG, cross entropy", "L-BFGS, squared error", "L-BFGS, cross entropy")
"""Each method has the same colour on all plots."""
_COLUMNS = 16


def page(found: Told, made: JapaneseSet) -> str:
    """Return the whole page as HTML."""
    cells = found["cells"]
    best = min((_errors(each)["degradations"]["error"] for each in cells), default=None)
    rate = found["account"]["flops_per_second"]
    numbers = [
        (percent(best) if best is not None else "none", "least error, unseen degradations (paper: 33 %)"),
        (
            f"{rate / 1e9:.0f} GFLOP/s" if rate else "none",
            "sustained on this machine (paper: 163.3 on 196 processors)",
        ),
        (scaled(found["account"]["flops"], "FLOP"), "used for all cells (paper: 2.35 PFLOP in four hours)"),
        (f"{len(cells)}", f"cells finished, {len(found['begun'])} in progress"),
    ]
    sections = [
        _table_1(found),
        _each(found),
        *_curves(found),
        _speed(found),
        _images(made),
        *_misread(cells, made),
        _how(found),
    ]
    return page_html(
        Page(
            title="The Bunyip experiment",
            summary=(
                "Machine-printed Japanese, 3203 characters of 20 x 20 grey, by a network 400-480-3203: "
                "table 1 of Aberdeen, Baxter and Edwards 2000 on a set rendered from typefaces, next to the "
                "figures of the paper."
            ),
            numbers=numbers,
            problems=[],
            sections=sections,
            footer=f"Cotswold {cotswold.__version__}, {found['machine']['processor']}. {found['command']}",
        )
    )


def drawing(found: Told) -> str:
    """Return the curves of all sizes as one SVG."""
    panels = list(_panels(found))
    with mpl.rc_context({"svg.hashsalt": "bunyip", "font.size": 9}):
        canvas = Canvas(figsize=(4.6 * max(1, len(panels)), 3.4), layout="constrained")
        for number, (title, lines) in enumerate(panels):
            axes = canvas.add_subplot(1, len(panels), number + 1)
            draw(axes, lines, Palette(), x="TFLOP", y="error on validation samples", bottom=0, top=1)
            axes.set_title(title, fontsize=9)
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _table_1(found: Told) -> PageSection:
    """Return the section with the paper's table and a column for each method and loss."""
    cells = [each for each in found["cells"] if each["frequencies"] == "natural"]
    words = [each for each in _METHODS if any(_words(cell) == each for cell in cells)]
    sizes = sorted({*paper.SIZES, *(each["patterns"] for each in cells)})
    rows = []
    for size in sizes:
        here = {_words(each): each for each in cells if each["patterns"] == size}
        least = min((_errors(each)["degradations"]["error"] for each in here.values()), default=None)
        stated = paper.TABLE_1.get(size)
        shown = [TableCell(count(size)), TableCell(percent(stated, 0) if stated else "")]
        for each in words:
            if each not in here:
                shown.append(TableCell("not run"))
                continue
            errors = _errors(here[each])
            error = errors["degradations"]["error"]
            shown.append(TableCell(percent(error), percent(errors["validation"]["error"]), error == least))
        rows.append(shown)
    head = ["Patterns", "The paper", *words]
    blocks: list[Block] = [
        Table(head, rows),
        Paragraph(_LARGE_AND_SMALL),
        Paragraph(_STOPPED, "note"),
    ]
    return PageSection("Table 1", "table-1", blocks)


_LARGE_AND_SMALL = (
    "Large: error on 6,320 scans with degradations that training never shows (fax, photocopies of copies, "
    "streaks, bent paper). Small: on the validation samples, printed and scanned like the training samples, "
    "which is the closest to the paper's test set."
)
_STOPPED = (
    "The paper's scans of books, faxes, newspapers and magazines were bought; these are rendered, so the "
    "figures are for different images. "
    "The paper stopped when the error on its test set no longer fell, so that set influenced "
    "training. Here the validation set decides when a cell ends and which network is kept. The "
    "other sets are evaluated after the end of the cell. The paper's cells took about 48 hours "
    "each on its cluster; the cells here end after the FLOPs in the next table."
)


def _each(found: Told) -> PageSection:
    """Return the section with all held-out figures of every finished cell."""
    head = [
        "Cell",
        "Used",
        "Degradations",
        "Families",
        "Commonest\n40 %",
        "Mean over\nclasses",
        "1 or 2\noriginals",
    ]
    rows = [
        [
            TableCell(_named(each)),
            TableCell(scaled(each["flops"], "FLOP"), f"{count(each['iterations'])} iterations"),
            _percents(each, "degradations", "error"),
            _percents(each, "families", "error"),
            _percents(each, "degradations", "common"),
            _percents(each, "degradations", "mean_over_classes"),
            TableCell(percent(_errors(each)["degradations"]["rare"]["1 to 2"] or 0.0)),
        ]
        for each in found["cells"]
    ]
    if not rows:
        return PageSection("Every cell", "cells", [Paragraph("No cell is finished.")])
    return PageSection("Every cell", "cells", [Table(head, rows), Paragraph(_EACH, "note")])


_EACH = (
    "Errors on scans that no cell has learnt from. Degradations: degradations unseen in training, also in "
    "the columns to the right. Families: typefaces unseen in training. Commonest 40 %: the samples of "
    "the characters that make up 40 % of the data; the paper states 5 %. Mean over classes: every character "
    "has equal weight. 1 or 2 originals: characters with 1 or 2 scans, which the paper calls "
    "overfitted. Small figures: on validation samples. Cells trained with equal frequencies are evaluated "
    "here on the frequencies of text."
)


def _curves(found: Told) -> Iterator[PageSection]:
    figures = [
        Figure(
            Drawing(
                plot(f"bunyip-{number}", lines, x="TFLOP", y="error on validation samples", bottom=0, top=1)
            ),
            title,
        )
        for number, (title, lines) in enumerate(_panels(found))
    ]
    seconds = [
        Figure(
            Drawing(
                plot(
                    f"bunyip-s-{number}", lines, x="seconds", y="error on validation samples", bottom=0, top=1
                )
            ),
            f"{title}, by seconds",
        )
        for number, (title, lines) in enumerate(_panels(found, "seconds", 1.0))
    ]
    if figures:
        note = (
            "Error on validation samples. FLOPs of value and gradient, as the paper counts them. "
            "Seconds include validation and the optimiser, FLOPs do not."
        )
        yield PageSection("Learning", "learning", [FigureGrid([*figures, *seconds]), Paragraph(note, "note")])


def _panels(found: Told, axis: str = "flops", unit: float = 1e12) -> Iterator[tuple[str, list[Line]]]:
    """Yield a title for each size, and a line for each method and loss."""
    going_on = {_key(each) for each in found["begun"]}
    cells = [*(each for each in found["cells"] if _key(each) not in going_on), *found["begun"]]
    for frequencies, size in sorted(
        {(each["frequencies"], each["patterns"]) for each in cells}, reverse=True
    ):
        lines = [
            Line(
                _words(each),
                [at / unit for at in each["curve"][axis]],
                each["curve"]["errors"],
                colour=_METHODS.index(_words(each)),
            )
            for each in cells
            if (each["frequencies"], each["patterns"]) == (frequencies, size)
        ]
        yield (
            f"{count(size)} patterns, {frequencies} frequencies",
            sorted(lines, key=lambda line: line.colour),
        )


def _speed(found: Told) -> PageSection:
    """Return the section with the sustained rate, counted like the paper's, and its cost."""
    account, prices = found["account"], found["prices"]
    rate, bought, rented = account["flops_per_second"], account["cents_per_mflops"], account["dollars"]
    rows = [
        row("", "This machine", "The paper"),
        row("Sustained", f"{rate / 1e9:.1f} GFLOP/s" if rate else "", "163.3 GFLOP/s"),
        row("Processor", str(found["machine"]["processor"]), "196 Pentium III of 550 MHz"),
        row("FLOPs", scaled(account["flops"], "FLOP"), "2.35 PFLOP"),
        row("Time", duration(account["seconds"]), "4 h"),
        row(
            "Bought hardware",
            f"{three_figures(bought)} cents per MFLOP/s" if bought is not None else "no price given",
            "92.4 cents per MFLOP/s",
        ),
        row("Rented", f"{rented:.2f} dollars for all cells" if rented is not None else "no price given", ""),
    ]
    blocks: list[Block] = [Table([each.text for each in rows[0]], rows[1:])]
    if prices["hardware_dollars"] or prices["rent_dollars_per_hour"]:
        each = Table(
            ["Cell", "Sustained", "Time", "Cents per MFLOP/s", "Dollars"],
            [
                row(
                    _named(cell),
                    f"{(cell['flops_per_second'] or 0) / 1e9:.1f} GFLOP/s",
                    duration(cell["seconds"]),
                    three_figures(cell["cents_per_mflops"]) if cell["cents_per_mflops"] is not None else "",
                    f"{cell['dollars']:.3f}" if cell["dollars"] is not None else "",
                )
                for cell in found["cells"]
            ],
        )
        blocks.append(each)
    blocks.append(
        Paragraph(
            "Counted as in section 6.2 of the paper: a value takes 2 n_p (n_i + n_o) n_h FLOPs, value and "
            "gradient n_p (4 n_i n_h + 6 n_h n_o), which is "
            f"{scaled(account['flops_of_a_pattern'], 'FLOP')} per pattern. Every evaluation computes the "
            "gradient. Seconds include validation, line searches and checkpoints. "
            "The user gives the prices; without a price there is no cost.",
            "note",
        )
    )
    return PageSection("Speed and price", "speed", blocks)


def _images(made: JapaneseSet) -> PageSection:
    """Return the section with training patterns, transformed patterns, and samples of the held-out sets."""
    some = 8 * _COLUMNS
    first = np.linspace(0, made.originals - 1, _COLUMNS).astype(np.int64)
    variants = (first + made.originals * np.arange(8)[:, None]).reshape(-1)
    shown = [
        ("Training patterns: untransformed scans", made.samples(np.arange(some))),
        ("One scan per column, with seven transformed patterns", made.samples(variants)),
        ("Validation: printed and scanned like training samples", made.held_out("validation")[0][:some]),
        ("Held out: degradations unseen in training", made.held_out("degradations")[0][:some]),
        ("Held out: families unseen in training", made.held_out("families")[0][:some]),
    ]
    figures = [Figure(_image(samples, title), title) for title, samples in shown]
    rare = int((made.frequencies <= 2).sum())
    facts = Facts(
        [
            ("Originals", count(made.originals)),
            ("Characters", count(len(made.classes))),
            ("Characters with one or two originals", count(rare)),
            ("Characters that make up 40 % of the data", count(len(made.most_frequent()))),
            ("Families trained on", count(sum(not each["held_out"] for each in made.families))),
            ("Families held out", ", ".join(each["name"] for each in made.families if each["held_out"])),
        ]
    )
    return PageSection("The set", "set", [facts, FigureGrid(figures, kind="plots")])


def _misread(cells: Sequence[Told], made: JapaneseSet) -> Iterator[PageSection]:
    """Return the section with samples misread by the best network."""
    if not cells:
        return
    best = min(cells, key=lambda each: float(_errors(each)["degradations"]["error"]))
    figures = []
    for part in PARTS[1:]:
        wrong = _errors(best)[part]["misread"][:_COLUMNS]
        samples = made.held_out(part)[0][[number for number, _, _ in wrong]]
        said = ", ".join(f"{true} as {read}" for _, true, read in wrong)
        figures.append(Figure(_image(samples, f"misread, {part}", _COLUMNS // 2), f"Unseen {part}: {said}"))
    yield PageSection(
        "Misread",
        "misread",
        [Paragraph(f"By {_words(best)}, {count(best['patterns'])} patterns."), FigureGrid(figures)],
    )


def _how(found: Told) -> PageSection:
    """Return the section with the settings of every cell."""
    head = ["Cell", "Search", "Fraction", "Cycle", "Portion", "Targets", "First\noutputs", "Ended"]
    ended = {_key(each): each for each in found["cells"]}
    rows = [
        row(
            _named(each),
            *(
                _text(told[name])
                for name in ("line_search", "sample_fraction", "cycle_iterations", "portion_size")
            ),
            f"{told['target_low']:g} and {told['target_high']:g}"
            if told["loss"] == "squared_error"
            else "classes",
            "at random" if told["output_scale"] else "0",
            _end(each) if key in ended else "in progress",
        )
        for key, each in {**{_key(each): each for each in found["begun"]}, **ended}.items()
        for told in (each["recipe"],)
    ]
    return PageSection(
        "Settings", "settings", [Table(head, rows)] if rows else [Paragraph("No cell has started.")]
    )


def _end(told: Told) -> str:
    if told["limited"]:
        return "FLOPs used"
    return "validation" if "validation" in told["ended"] else "no step down"


def _image(samples: Any, text: str, columns: int = _COLUMNS) -> Image:
    return Image(png_uri(contact_sheet(samples, columns, 1).convert("L")), text)


def _percents(told: Told, part: str, name: str) -> TableCell:
    errors = _errors(told)
    return TableCell(percent(errors[part][name]), percent(errors["validation"][name]))


def _errors(told: Told) -> Told:
    """Return the errors on the set with natural frequencies, for any training frequencies."""
    found: Told = told["held_out"]["natural"]
    return found


def _words(told: Told) -> str:
    method = {"cg": "CG", "lbfgs": "L-BFGS"}[told["method"]]
    return f"{method}, {told['loss'].replace('_', ' ')}"


def _named(told: Told) -> str:
    """Return a cell's name for the first column."""
    kind = "" if told["frequencies"] == "natural" else ", equal"
    return f"{count(told['patterns'])}{kind}: {_words(told)}"


def _key(told: Told) -> tuple[object, ...]:
    return tuple(told[name] for name in ("frequencies", "patterns", "method", "loss"))


def _text(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
