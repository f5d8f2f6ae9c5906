"""Aberdeen, Baxter, Edwards 2000, Bunyip: its table and figures, compared with Cotswold's results.

Knows: the paper's statements, the results for each figure. Does not know: how results were measured, pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cotswold.analysis.plots import Line
from cotswold.analysis.report.blocks import Table, row
from lib.bunyip import paper as stated
from lib.papers.part import Claim, Found, Paper, Part, Result
from lib.papers.plots import figure, times


def figure_4(kernels: Result) -> Found:
    """Return the rate of a matrix product by its size."""
    threads = min(each["threads"] for each in kernels["rows"])
    rows: list[Any] = [
        each for each in kernels["rows"] if each["group"] == "curve" and each["threads"] == threads
    ]
    if not rows:
        return Found([Claim("rate by size", "this run of the kernels has no curve")])
    sizes = [int(each["shape"].split()[0]) for each in rows]
    names = [name for name in ("cotswold", "torch.mm", "oneDNN", "NumPy") if name in rows[0]["figures"]]
    lines = [
        Line(name, sizes, [each["figures"][name]["median"] for each in rows], colour, dots=True)
        for colour, name in enumerate(names)
    ]
    last = rows[-1]["figures"]
    best = max(names[1:], key=lambda name: float(last[name]["median"]))
    return Found(
        [
            Claim(
                "2.09 times ATLAS beyond size 100",
                f"{last['cotswold']['median'] / last[best]['median']:.2f} times {best}, the fastest library "
                f"on this machine, at {sizes[-1]}",
            ),
            Claim("890 MFLOP/s at 450 MHz", f"{last['cotswold']['median']:.0f} GFLOP/s at {sizes[-1]}"),
        ],
        [figure("bunyip-4", "Figure 4, on one thread", lines, x="size", y="GFLOP/s", bottom=0)],
        note="Cotswold's own kernels are for local filters; plain products use the fastest library.",
    )


def gradient(kernels: Result) -> Found:
    """Return value and gradient of the paper's network, compared with autograd and the dense product."""
    rows: list[Any] = [
        each
        for each in kernels["rows"]
        if each["group"] == "dense" and each["operation"] == "value and gradient"
    ]
    if not rows:
        return Found([Claim("the gradient", "this run of the kernels has no fully connected network")])
    own = rows[0]
    ceiling = own["figures"]["ceiling, oneDNN"]["median"]
    rival = own["figures"]["PyTorch's autograd"]["median"]
    rate = own["figures"]["cotswold"]["median"]
    return Found(
        [
            Claim(
                "833 MFLOP/s per processor in training, 0.76 of their peak",
                f"{rate:.0f} GFLOP/s per core, {rate / ceiling:.2f} of the fastest dense product and "
                f"{rate / rival:.2f} times PyTorch's autograd",
            )
        ]
    )


def figure_5(found: Result) -> Found:
    """Return the four stages of the reduction, and LAM's tree."""
    said = found["words"][:7]
    return Found([Claim(each["the paper"], each["predicted"]) for each in said], note=_NO_CONSTANT)


def reduction(found: Result) -> Found:
    """Return the sum of Bunyip's gradient over hosts with links of 100 Mb/s, measured here."""
    claims = []
    for layout, tree in (("neighbouring", "host by host"), ("interleaved", "in turn")):
        rows = found[layout]["rows"]
        chosen = next(value for name, value in rows.items() if name.startswith("reduce: chosen"))
        lam = next(value for name, value in rows.items() if "binomial tree" in name and "whole" in name)
        claims.append(
            Claim(
                f"1.73 times LAM's tree (ranks {tree})",
                f"{times(lam['median'] / chosen['median'])}; "
                f"{chosen['median'] / found[layout]['bound']:.2f} of "
                "the bound, one vector over one link",
            )
        )
    return Found(
        claims, note=f"{found['hosts']} hosts of two processes, in network namespaces, {found['rate']}."
    )


def figure_6(found: Result) -> Found:
    """Return the speed-up by the reduction for each number of patterns."""
    rows = found["figure 6"]
    x = _of(rows, "patterns")
    names = ("predicted, host by host", "predicted, in turn", "from the stated seconds", "Cotswold's choice")
    lines = [Line(name, x, _of(rows, name), colour) for colour, name in enumerate(names)]
    said = found["words"][7:9]
    return Found(
        [Claim(each["the paper"], each["predicted"]) for each in said],
        [figure("bunyip-6", "Figure 6", lines, x="patterns", y="speed-up", scale="log")],
        note=_NO_CONSTANT,
    )


def figure_8(found: Result) -> Found:
    """Return throughput by processors for three workloads."""
    lines = [
        Line(name, _of(rows, "processors"), [each.get("four stages", each["LAM"]) for each in rows], colour)
        for colour, (name, rows) in enumerate(found["figure 8"].items())
    ]
    said = found["words"][9:12]
    return Found(
        [Claim(each["the paper"], each["predicted"]) for each in said],
        [figure("bunyip-8", "Figure 8", lines, x="processors", y="times one processor")],
        note=_NO_CONSTANT + " The last point uses the four stages, the others LAM's reduction.",
    )


def sustained(found: Result) -> Found:
    """Return the sustained rate and its price."""
    said = found["words"][12:]
    return Found([Claim(each["the paper"], each["predicted"]) for each in said], note=_NO_CONSTANT)


def two_workers(found: Result) -> Found:
    """Return the results of two workers of a cluster on this machine."""
    cases = found["cases"]
    said = {
        "two, bunyip": "two workers over two isolated processes",
        "quarter, bunyip": "one of two at a quarter of its speed, over the ideal time",
        "killed, bunyip": "one killed at intervals, over equal time without kills",
    }
    return Found(
        [
            Claim(f"{text}: not stated", f"{cases[name]['ratio']:.2f}")
            for name, text in said.items()
            if name in cases
        ]
    )


def table_1(found: Result) -> Found:
    """Return the error by number of training patterns."""
    claims, shown = [], []
    for size in stated.SIZES:
        own = [each for each in found["cells"] if each["patterns"] == size]
        least = min((_error(each) for each in own), default=None)
        ours = "not run" if least is None else f"{100 * least:.1f} % at best, {_flops(own)}"
        claims.append(Claim(f"{size:,} patterns: {100 * stated.TABLE_1[size]:.0f} %", ours))
        for each in own:
            shown.append(
                row(
                    f"{each['method']}, {each['loss'].replace('_', ' ')}",
                    f"{size:,}",
                    f"{100 * _error(each):.1f} %",
                    f"{100 * each['held_out']['natural']['degradations']['common']:.1f} %",
                    f"{each['flops'] / 1e12:.0f} TFLOP",
                )
            )
    lines = [
        Line(
            f"{each['method']}, {each['loss'].replace('_', ' ')}",
            [at / 1e12 for at in each["curve"]["flops"]],
            [100 * one for one in each["curve"]["errors"]],
            colour,
        )
        for colour, each in enumerate(found["cells"][:4])
    ]
    head = ["Method", "Patterns", "Error", "Commonest\n40 %", "Used"]
    drawn = [figure("bunyip-1", "Error on validation samples", lines, x="TFLOP", y="%")] if lines else []
    return Found(
        claims,
        drawn,
        [Table(head, shown)] if shown else (),
        note=(
            "The paper's scans were bought and are not available; these are rendered from typefaces, so "
            "the errors are for different images. The paper's cells took about 48 hours on 196 processors "
            "each (some PFLOP), and it stopped on its test set; here a validation set decides when to stop."
        ),
    )


def _error(cell: Result) -> float:
    return float(cell["held_out"]["natural"]["degradations"]["error"])


def _flops(cells: Iterable[Result]) -> str:
    return f"{max(each['flops'] for each in cells) / 1e12:.0f} TFLOP per cell"


def _of(rows: Iterable[Result], name: str) -> list[float]:
    return [float(each[name]) for each in rows]


_NO_CONSTANT = "No constant is fitted: cards have their nominal 100 Mb/s."
_STAGES = "0.18, 0.66, 0.9 and 3.16 s, 4.9 in all, where LAM's reduce takes 8.5."

PAPER = Paper(
    "aberdeen2000",
    "Bunyip, reproduced",
    "Aberdeen, Baxter and Edwards 2000: the paper's figures, and Cotswold's on this machine or predicted "
    "for the paper's cluster.",
    (
        Part(
            "Table 1",
            "error by number of patterns",
            "measured",
            "Printed Japanese, 3203 characters, rendered from typefaces; the paper's network 400-480-3203.",
            "343,800, 611,200 and 1,833,600 patterns give 51, 46 and 33 %.",
            ("bunyip",),
            table_1,
        ),
        Part(
            "Figure 4",
            "a matrix product by size",
            "measured",
            "Square products on one thread: these kernels, PyTorch, oneDNN and NumPy.",
            "Emmerald: 1.69 times the clock and 2.09 times ATLAS beyond size 100; 890 MFLOP/s at its peak.",
            ("kernels",),
            figure_4,
        ),
        Part(
            "Section 6.2",
            "value and gradient",
            "measured",
            "The paper's network on one thread, FLOPs counted as in the paper.",
            "163.3 GFLOP/s on 196 processors.",
            ("kernels",),
            gradient,
        ),
        Part(
            "Figure 5",
            "four stages of the reduction",
            "simulated",
            "The plan of the paper on the paper's network, 96 nodes with three cards each.",
            _STAGES,
            ("bunyip-figures",),
            figure_5,
        ),
        Part(
            "Figure 5, here",
            "a reduction over slow links",
            "measured",
            "Bunyip's gradient of 6.9 MB over hosts with links of 100 Mb/s, in network namespaces.",
            _STAGES,
            ("reduction",),
            reduction,
        ),
        Part(
            "Figure 6",
            "speed-up by the reduction",
            "simulated",
            "An evaluation with each reduction, by number of patterns.",
            "About 1 % at the peak, more with fewer patterns.",
            ("bunyip-figures",),
            figure_6,
        ),
        Part(
            "Figure 8",
            "throughput by processors",
            "simulated",
            "Three workloads on 1 to 194 processors.",
            "Linear on few processors; the larger network scales better; near linear with the patterns.",
            ("bunyip-figures",),
            figure_8,
        ),
        Part(
            "Figure 8, here",
            "two workers: equal, slow and killed",
            "measured",
            "Evaluations by two workers of a cluster on two cores.",
            "Linear on few processors.",
            ("batch",),
            two_workers,
        ),
        Part(
            "Section 7.3",
            "sustained rate and price",
            "simulated",
            "Four hours on 9,360,000 patterns by 196 processors.",
            "163.3 GFLOP/s sustained; 92.4 cents per MFLOP/s.",
            ("bunyip-figures",),
            sustained,
        ),
    ),
    (
        "figures 1 to 3 are diagrams",
        "figure 7 shows characters; the page of bunyip.py shows the rendered ones",
    ),
)
