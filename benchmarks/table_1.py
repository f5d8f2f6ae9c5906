"""Table 1 of Aberdeen et al. 2000: error on held-out patterns against the number of training patterns.

    python benchmarks/table_1.py FOLDER [--recipe bunyip-japanese-ocr] [--source japanese-ocr]
        [--patterns 343800 611200 1833600] [--flops 1e15] [--methods cg lbfgs]
        [--losses squared cross_entropy] [--workers 1] [--max-hours H]

Trains every size with every method and loss until it has used the FLOPs, each in a run of its own in FOLDER;
called again it goes on where it stood. A run that stops before, on its validation set, says so (the paper
stopped on its test set). Then measures the error on the test split, of all patterns and of those whose
characters are the commonest 40 % of the training patterns, and writes FOLDER/table_1.html and table_1.json.
"""

from __future__ import annotations

import argparse
import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

Row = dict[str, object]
PAPER = {343_800: 51, 611_200: 46, 1_833_600: 33}
LOSSES: Mapping[str, Mapping[str, object]] = {
    "squared": {},
    "cross_entropy": {
        "objective.loss": "cross_entropy",
        "objective.low": None,
        "objective.high": None,
        "network.output": "linear",
    },
}
METHODS: Mapping[str, Mapping[str, object]] = {
    "cg": {"training.method": "cg"},
    "lbfgs": {"training.method": "lbfgs", "training.beta": None, "training.search": "wolfe"},
}


def main() -> None:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recipe", default="bunyip-japanese-ocr")
    parser.add_argument("--source", default="japanese-ocr", help="the folder of the set")
    parser.add_argument("--patterns", type=int, nargs="+", default=[*PAPER])
    parser.add_argument("--flops", type=float, default=1e15)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["cg", "lbfgs"])
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=["squared"])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--max-hours", type=float, help="of each run")
    given = parser.parse_args()
    rows = []
    for row in trained(given):
        rows.append(row)
        print(words_of(row), flush=True)
        written = {"processor": processor(), "flops": given.flops, "rows": rows}
        (given.folder / "table_1.json").write_text(json.dumps(written, indent=1) + "\n")
        (given.folder / "table_1.html").write_text(page(rows, given.flops), encoding="utf-8")


def trained(given: argparse.Namespace) -> Iterator[Row]:
    """A row a run, in the order of the table."""
    import cotswold

    for patterns in given.patterns:
        for loss in given.losses:
            for method in given.methods:
                overrides = {
                    "data.source": f"{given.source}:{patterns}",
                    "training.flops": given.flops,
                    "training.iterations": 1_000_000,
                    "cluster.workers": given.workers,
                    "price.max_hours": given.max_hours,
                    **METHODS[method],
                    **LOSSES[loss],
                }
                run = cotswold.train(
                    given.recipe,
                    given.folder / f"{patterns}-{loss}-{method}",
                    overrides=overrides,
                    stores=given.folder / "stores",
                    resume="if_started",
                )
                yield {"patterns": patterns, "loss": loss, "method": method, **judged(run, given.folder)}


def judged(run: object, folder: Path) -> Row:
    """What a run reached, on its test split."""
    import torch

    import cotswold
    from cotswold import training
    from cotswold.training.patterns import StorePatterns

    assert isinstance(run, cotswold.Run)
    store = training.store_of(run.directory, run.recipe, folder / "stores")
    counts = torch.bincount(torch.from_numpy(store.labels("train")), minlength=len(store.classes))
    order = counts.argsort(descending=True)
    share = counts[order].cumsum(0) / counts.sum()
    common = torch.zeros(len(counts), dtype=torch.bool)
    common[order[: int((share < 0.4).sum()) + 1]] = True
    right = total = right_common = total_common = 0
    held = StorePatterns(store, "test")
    for start in range(0, len(held), 1024):
        batch = held.batch(range(start, min(start + 1024, len(held))))
        assert batch.targets is not None, "labelled"
        hits = run.network(batch.inputs).argmax(1) == batch.targets
        chosen = common[batch.targets]
        right, total = right + int(hits.sum()), total + len(hits)
        right_common += int(hits[chosen].sum())
        total_common += int(chosen.sum())
    end = next(event for event in reversed(run.events) if event["kind"] == "end")
    why = next((event["why"] for event in reversed(run.events) if event["kind"] == "stack_end"), run.status)
    return {
        "error": 1 - right / total,
        "error_common": 1 - right_common / total_common if total_common else None,
        "flops": end["flops"],
        "seconds": end["training_seconds"],
        "flops_per_second": end["flops_per_second"],
        "cents_per_mflops": end["cents_per_mflops"],
        "dollars": end["dollars"],
        "ended": why,
    }


def words_of(row: Row) -> str:
    """A row in a line."""
    common = (
        "" if row["error_common"] is None else f" ({float(str(row['error_common'])):.1%} on the commonest)"
    )
    return (
        f"{row['patterns']:>9,} {row['loss']:14} {row['method']:6} {float(str(row['error'])):.1%}{common}, "
        f"{float(str(row['flops'])):.3g} FLOP, ended: {row['ended']}"
    )


def page(rows: Sequence[Row], flops: float) -> str:
    """The table as a page."""
    head = "patterns, loss, method, error, error on the commonest 40 %, the paper's error, FLOPs, seconds"
    head += ", FLOP/s, ended"
    lines = []
    for row in rows:
        patterns = int(str(row["patterns"]))
        common, paper = row["error_common"], PAPER.get(patterns)
        cells = [
            f"{patterns:,}",
            row["loss"],
            row["method"],
            f"{float(str(row['error'])):.1%}",
            "" if common is None else f"{float(str(common)):.1%}",
            "" if paper is None else f"{paper} %",
            f"{float(str(row['flops'])):.3g}",
            f"{float(str(row['seconds'])):,.0f}",
            f"{float(str(row['flops_per_second'])):.3g}",
            row["ended"],
        ]
        lines.append("<tr>" + "".join(f"<td>{html.escape(str(each))}</td>" for each in cells) + "</tr>")
    return (
        '<!doctype html><meta charset="utf-8"><title>Table 1</title>\n'
        "<style>body{font:15px sans-serif;margin:2em}td,th{padding:.3em .7em;text-align:right;"
        "border-bottom:1px solid #ccc}</style>\n<h1>Error against the number of training patterns</h1>\n"
        f"<p>At most {flops:.3g} FLOP a run. The paper's runs took about 48 hours each on 193 processors and "
        "were stopped on the test set; these are stopped on a validation set.</p>\n<table><tr>"
        + "".join(f"<th>{html.escape(each)}</th>" for each in head.split(", "))
        + "</tr>\n"
        + "\n".join(lines)
        + "\n</table>\n"
    )


def processor() -> str:
    """The name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


if __name__ == "__main__":
    main()
