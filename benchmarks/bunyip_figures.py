"""Figures 6 and 8 of Aberdeen et al. 2000: measured here with one and two workers, simulated with more.

    python benchmarks/bunyip_figures.py [--tflop 2] [--rounds 5] [--reductions 5] [--out benchmarks/results]

Simulated: the four stages of Bunyip's reduction, its speed-up (figure 6) and throughput by processors (figure
8), compared with the figures that the paper states in words; no constant is fitted.

Measured: evaluations of the three workloads of figure 8 by one process and by two workers of a cluster,
compared with predictions from the rate of a portion in the same round. Also reductions of eight processes on
four hosts with links of 100 Mb/s (needs root; left out with --reductions 0), which give figure 6 for eight
workers of this machine. --tflop limits a measured evaluation: a larger workload is cut to fewer patterns.
--rounds 0 measures nothing. Takes about 10 minutes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotswold.bench.measure import document, rounded
from cotswold.cli.support.tables import table
from cotswold.geometry import Host, Network, NetworkCard
from cotswold.simulate import predict_evaluation
from cotswold.simulate.estimates.batch import ReductionChoice, best_reduction
from cotswold.simulate.estimates.bunyip import (
    POLL,
    PROCESSORS,
    SAMPLES_PER_PROCESSOR,
    STATED_FOUR,
    STATED_LAM,
    STATED_STAGES,
    WORKLOADS,
    dense_work,
    evaluation,
    four_stage_reduction,
    lam_reduction,
    machine,
    network,
    stage_seconds,
    stated_card_gbits,
)
from lib.batch.bunyip_plots import draw
from lib.batch.figures import measured

COUNTS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, PROCESSORS)
PATTERNS = (10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 9_360_000)
PEAK_PATTERNS = 9_360_000
"""Patterns of the four hours at 163.3 GFLOP/s on 196 processors (section 7.3)."""
STATED_GFLOPS, STATED_PROCESSORS, STATED_CENTS = 163.3, 196, 92.4
OCR = (400, 480, 3203)
CHOSEN = "Cotswold's choice"
COLUMNS = (
    *("sizes", "patterns", "workers", "travel", "seconds", "predicted_seconds", "predicted_over_measured"),
    "gflops",
)
Document = dict[str, object]


def stages() -> Document:
    """Return the reductions of section 5.2: as stated, as predicted at the cards' nominal rate, and as
    predicted at the rate that the cards reached in the second stage."""
    found: Document = {"stated_stages": list(STATED_STAGES), "stated": STATED_FOUR, "stated_lam": STATED_LAM}
    for name, gbits in (("at 100 Mb/s", None), ("at the rate of stage 2", stated_card_gbits())):
        over = network(card_gbits=gbits)
        four, host_by_host, in_turn = four_stage_reduction(), lam_reduction(), lam_reduction(in_turn=True)
        # training would choose any plan, split into pieces
        best = best_reduction(over, evaluation(OCR, PEAK_PATTERNS, PROCESSORS))
        predicted = stage_seconds(four, over)
        found[name] = {
            "mbits": 100.0 if gbits is None else 1e3 * gbits,
            "stages": predicted,
            "residuals": [said - one for said, one in zip(STATED_STAGES, predicted, strict=True)],
            "four stages": four.seconds(over, 4),
            "LAM, host by host": host_by_host.seconds(over, 4),
            "LAM, in turn": in_turn.seconds(over, 4),
            CHOSEN: best.seconds(over, 4),
            "chosen": best.name,
        }
    return found


def figure_6() -> list[Document]:
    """Return the time of an evaluation with LAM's reduction over the time with the four stages, by patterns:
    with predicted reductions and with the paper's stated seconds."""
    rows: list[Document] = []
    plans = {
        "four": four_stage_reduction(),
        "host by host": lam_reduction(),
        "in turn": lam_reduction(in_turn=True),
    }
    for samples in PATTERNS:
        work = evaluation(OCR, samples, PROCESSORS)
        found = {name: predict_evaluation(machine(), work, PROCESSORS, how) for name, how in plans.items()}
        seconds = {name: each.repeated_seconds for name, each in found.items()}
        rest = seconds["four"] - found["four"].parts["sum"]
        chosen = predict_evaluation(machine(), work, PROCESSORS)
        rows.append(
            {
                "patterns": samples,
                "predicted, host by host": seconds["host by host"] / seconds["four"],
                "predicted, in turn": seconds["in turn"] / seconds["four"],
                "from the stated seconds": (rest + STATED_LAM) / (rest + STATED_FOUR),
                CHOSEN: seconds["in turn"] / chosen.repeated_seconds,
            }
        )
    return rows


def figure_8() -> dict[str, list[Document]]:
    """Return GFLOP/s of an evaluation, including the broadcast of a direction, by number of processors."""
    found: dict[str, list[Document]] = {}
    for name, (sizes, given) in WORKLOADS.items():
        rows = found[name] = []
        for count in COUNTS:
            work = evaluation(sizes, SAMPLES_PER_PROCESSOR * count if given is None else given, count)
            ways: dict[str, ReductionChoice | None] = {"LAM": None, CHOSEN: None}
            if count > 1:
                ways["LAM"] = lam_reduction(count, work.parameters, in_turn=True)
            if count == PROCESSORS:
                ways["four stages"] = four_stage_reduction(work.parameters)
            rates = {
                way: predict_evaluation(machine(), work, count, how).flops_per_second / 1e9
                for way, how in ways.items()
            }
            rows.append({"processors": count, **rates})
    return found


def peak() -> Document:
    """Return the peak: four hours on the whole machine, an evaluation of 9,360,000 patterns."""
    work = evaluation(OCR, PEAK_PATTERNS, PROCESSORS)
    found = predict_evaluation(machine(), work, PROCESSORS, four_stage_reduction())
    stated = 1e3 * STATED_GFLOPS / STATED_PROCESSORS
    predicted = found.flops_per_second / 1e6 / PROCESSORS
    return {
        "stated_mflops_a_processor": stated,
        "predicted_mflops_a_processor": predicted,
        "predicted_over_stated": predicted / stated,
        "stated_cents": STATED_CENTS,
        "predicted_cents": found.cents_per_mflops,
        "computing": found.computing_fraction,
        "parts": dict(found.parts),
    }


def words(found: Mapping[str, Any]) -> list[Document]:
    """Return the paper's statements next to their predictions."""
    named, stated = found["stages"]["at 100 Mb/s"], found["stages"]["at the rate of stage 2"]
    top, six, eight = found["peak"], found["figure 6"], found["figure 8"]

    def gain(name: str, count: int = PROCESSORS) -> float:
        rows = {row["processors"]: row["LAM"] for row in eight[name]}
        return float(rows[count] / rows[1])

    small, middle, large = WORKLOADS
    rows = [
        _row(
            f"stage {number}: {said:g} s", f"{one:.3f} s, {said - one:.3f} s not explained", f"{other:.3f} s"
        )
        for number, (said, one, other) in enumerate(
            zip(STATED_STAGES, named["stages"], stated["stages"], strict=True), 1
        )
    ]
    ways = ("LAM, host by host", "LAM, in turn")
    lam = [" and ".join(f"{each[way]:.2f}" for way in ways) for each in (named, stated)]
    four = [each["four stages"] for each in (named, stated)]
    ratio = [
        " and ".join(f"{each[way] / each['four stages']:.2f}" for way in ways) for each in (named, stated)
    ]
    last = six[-1]
    return [
        *rows,
        _row("four stages in all: 4.9 s", *(f"{each:.2f} s" for each in four)),
        _row("LAM's tree: 8.5 s in 8 stages (host by host, in turn)", *(f"{each} s" for each in lam)),
        _row("so 1.73 times as fast", *ratio),
        _row("figure 6: about 1 % at the peak",
             f"{100 * (last['predicted, in turn'] - 1):.2f} %; from 8.5 s and 4.9 s "
             f"{100 * (last['from the stated seconds'] - 1):.2f} %"),
        _row("and more with fewer patterns",
             f"{six[0]['predicted, in turn']:.2f} times with {six[0]['patterns']:,}"),
        _row("figure 8: few processors, linear in both networks",
             f"on 8: {gain(small, 8):.2f} times, {gain(middle, 8):.2f} times"),
        _row("the larger network scales better on many",
             f"on 194: {gain(small):.0f} times, {gain(middle):.0f} times"),
        _row("32,000 patterns a processor: near linear", f"{gain(large):.0f} times on 194"),
        _row("163.3 GFLOP/s on 196: 833 MFLOP/s each",
             f"{top['predicted_mflops_a_processor']:.0f} MFLOP/s each, "
             f"{top['predicted_over_stated']:.2f} of the stated rate"),
        _row("92.4 cents per MFLOP/s", f"{top['predicted_cents']:.1f} cents"),
    ]  # fmt: skip


def _row(said: str, predicted: str, with_stated: str = "") -> Document:
    return {"the paper": said, "predicted": predicted, "cards at the rate of stage 2": with_stated}


def reductions(rounds: int) -> Document:
    """Return median seconds of eight processes on four hosts with links of 100 Mb/s, with ranks dealt to
    hosts in turn."""
    from cotswold.testing.hosts import Hosts
    from reduction import PER_HOST, measure

    hosts = 4
    ranks = [tuple(range(host, PER_HOST * hosts, hosts)) for host in range(hosts)]
    over = Network(tuple(Host(each, (NetworkCard(0, 100_000_000),)) for each in ranks))
    with tempfile.TemporaryDirectory() as folder, Hosts(hosts, "100mbit") as made:
        rows = measure(made, over, rounds, Path(folder))
    tree = next(row for name, row in rows.items() if "LAM" in name)
    best = next(row for name, row in rows.items() if name.startswith("reduce: chosen") and "encr" not in name)
    return {"tree": tree["median"], "chosen": best["median"], "rows": rows}


def here(tflop: float, rounds: int, reduced: int) -> Document:
    """Return both figures for this machine, with predictions from rates measured in the same rounds."""
    rows: list[Document] = []
    for name, (sizes, given) in WORKLOADS.items():
        print(f"measured: {name}", flush=True)
        whole = 2 * SAMPLES_PER_PROCESSOR if given is None else given
        most = int(tflop * 1e12 / dense_work(sizes, whole, POLL).sample_flops)
        samples = whole if most >= whole else max(2 * POLL, most // (2 * POLL) * 2 * POLL)
        rows += measured(sizes, samples, POLL, rounds).rows()
    found: Document = {"tflop_most": tflop, "figure 8": rows}
    if reduced:
        took = reductions(reduced)
        one = [row for row in rows if row["workers"] == 1][-1]
        rate = float(str(one["patterns"])) / float(str(one["seconds"]))
        tree, best = float(str(took["tree"])), float(str(took["chosen"]))
        found["reductions"] = took
        found["figure 6"] = [
            {"patterns": each, "speed_up": (each / 8 / rate + tree) / (each / 8 / rate + best)}
            for each in PATTERNS
        ]
    return found


def main(tflop: float, rounds: int, reduced: int, folder: Path) -> None:
    """Predict, measure, plot, print."""
    found: dict[str, Any] = {
        "stages": stages(),
        "figure 6": figure_6(),
        "figure 8": figure_8(),
        "peak": peak(),
    }
    said = words(found)
    table("the paper's statements and their predictions", said)
    _leave(found, said, folder)
    if rounds:
        found["here"] = here(tflop, rounds, reduced)
        shown = [
            {name: rounded(value) if isinstance(value, float) else value for name, value in row.items()}
            for row in found["here"]["figure 8"]
        ]
        columns = [{name: row[name] for name in COLUMNS} for row in shown]
        table("this machine: measured, and predicted from a portion's rate", columns)
        _leave(found, said, folder)


def _leave(found: Mapping[str, Any], said: list[Document], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kept = document("bunyip-figures", "python benchmarks/bunyip_figures.py", words=said, **found)
    (folder / "bunyip-figures.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    draw(found, folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tflop", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reductions", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    asked = parser.parse_args()
    main(asked.tflop, asked.rounds, asked.reductions, asked.out)
