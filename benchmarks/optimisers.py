"""Compare L-BFGS and conjugate gradient with SciPy's, in evaluations of value and gradient.

    python benchmarks/optimisers.py [--starts 15] [--problem NAME] [--out benchmarks/results]
    python benchmarks/optimisers.py --float32 [--starts 3]

Every method runs on every problem in float64, from starts that are moved by 1e-7: there, SciPy's own counts
differ by up to a factor of two. Prints medians: evaluations to the minimum (no element of the gradient above
1e-5) and the lowest value; for networks the evaluations to the loss of SciPy's method after 200, and the loss
after 300. Counts of evaluations do not depend on the load of the machine. With --float32: line searches in
float32, and the excess over the minimum in float64.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from lib.optimisers.problems import problems
from lib.optimisers.single import single_problems, singles
from lib.optimisers.table import compared, faults, methods


def main() -> None:
    """Compare, print a table, keep the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=15, help="starts of each method")
    names = [problem.name for problem in problems()]
    parser.add_argument("--problem", action="append", choices=names, help="may be given again [all]")
    parser.add_argument("--float32", action="store_true", help="line searches in float32, without SciPy")
    parser.add_argument("--out", type=Path, help="directory for optimisers.json")
    words = parser.parse_args()
    torch.set_num_threads(1)
    if words.float32:
        if words.problem is not None or words.out is not None:
            parser.error("--float32 has its own problems and keeps no figures; leave out --problem and --out")
        for problem in single_problems():
            singles(problem, words.starts, lambda line: print(line, flush=True))
        return
    rows = []
    for problem in problems():
        if words.problem is None or problem.name in words.problem:
            rows += compared(problem, methods(), words.starts, lambda line: print(line, flush=True))
    found = faults(rows)
    print("\n".join(found) or "every minimum reached within the allowed evaluations")
    if words.out is not None:
        from cotswold.bench.measure import document

        told = "python benchmarks/optimisers.py"
        kept = document(
            "optimisers", told, starts=words.starts, faults=found, rows=[row.as_json() for row in rows]
        )
        (words.out / "optimisers.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
