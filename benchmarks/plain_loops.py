"""A training step of shipped recipes, compared with the loop that a PyTorch user would write.

Knows: the command's options, rounds, tables. Does not know: what a step computes.
"""

from __future__ import annotations

from math import isclose
from pathlib import Path

import torch

from cotswold.bench.measure import Rounds, document, interleaved, ratios, rounded, rounded_all
from cotswold.cli.support.tables import require_positive, table, write_result
from cotswold.host import keep_freed_memory
from lib.command import Json, command, main
from lib.plain_loops import Case, cases

TOLERANCE = 1e-3


def plain_loops(
    *,
    recipe: str = "",
    threads: int = 1,
    seconds: float = 6.0,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Measure a training step of `faces`, `adam-mnist` and `bunyip-japanese-ocr`, compared with plain torch.

    Operands are random. Steps alternate; the ratio is the median over rounds of the plain loop's seconds, in
    its better layout, divided by ours. Freed memory stays with the process, for both. Examples:

      python benchmarks/plain_loops.py
      python benchmarks/plain_loops.py --recipe adam --threads 2

    Parameters
    ----------
    recipe
        Only recipes whose name contains this text.
    threads
        Threads of computation.
    seconds
        Seconds for each case.
    out
        Directory for plain-loops.json.
    json_
        Print JSON.
    """
    torch.set_num_threads(require_positive(threads, "--threads"))
    keep_freed_memory()
    rows = [_measured(case, seconds) for case in cases() if recipe in case.recipe]
    found = document("plain-loops", command(), threads=threads, rows=rows)
    write_result(found, "plain-loops", out, json_)
    if not json_:
        columns = ("recipe", "what", "ours_ms", "plain_ms", "layout", "times_as_fast", "spread")
        table("medians; the ratio by rounds", [{name: row[name] for name in columns} for row in rows])


def _measured(case: Case, seconds: float) -> dict[str, object]:
    if not isclose(*case.losses, rel_tol=TOLERANCE):
        raise AssertionError(f"{case.recipe}, {case.name}: the losses differ, {case.losses}")
    actions = {"cotswold": case.ours, **case.plain}
    taken = interleaved(actions, Rounds(max_rounds=99, min_rounds=5, seconds=seconds, slow_seconds=5.0))
    medians = {name: sorted(each)[len(each) // 2] for name, each in taken.items()}
    layout = min(case.plain, key=medians.__getitem__)
    ratio = ratios(taken[layout], taken["cotswold"])
    return {
        "recipe": case.recipe,
        "what": case.name,
        "ours_ms": rounded(1e3 * medians["cotswold"]),
        "plain_ms": rounded(1e3 * medians[layout]),
        "layout": layout,
        "times_as_fast": rounded(ratio.median),
        "spread": f"{rounded(ratio.lower)} to {rounded(ratio.upper)}",
        "losses": rounded_all(list(case.losses)),
        "seconds": {name: rounded_all(each) for name, each in taken.items()},
    }


if __name__ == "__main__":
    main(plain_loops)
