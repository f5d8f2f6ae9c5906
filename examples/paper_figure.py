"""Draw figure 8 of Aberdeen et al. 2000 from its JSON file in this repository: throughput by processors.

    python examples/paper_figure.py --out runs/figure

`benchmarks/bunyip_figures.py` has predicted the curves from the paper's hardware, without a fitted constant.
The cross is the paper's own figure: 163.3 GFLOP/s on 196 processors. The program writes `paper_figure.svg`.
"""

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import matplotlib.pyplot as plt

RESULTS = Path("benchmarks") / "results" / "bunyip-figures.json"
STATED_GFLOPS, STATED_PROCESSORS = 163.3, 196


def main(out: Path, short: bool) -> None:
    here = Path.cwd().resolve()
    folder = next((each for each in (here, *here.parents) if (each / RESULTS).exists()), None)
    if folder is None:
        raise SystemExit(f"no {RESULTS} here or above; start the program in a checkout of Cotswold")
    results = json.loads((folder / RESULTS).read_text(encoding="utf-8"))

    figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
    for name, rows in results["figure 8"].items():
        ours = "Cotswold's choice"
        counts = [row["processors"] for row in rows]
        (line,) = axes.plot(counts, [row["LAM"] for row in rows], ":")
        axes.plot(counts, [row[ours] for row in rows], color=line.get_color(), label=name)
        print(f"{name}: {rows[-1]['LAM']:.0f} GFLOP/s with LAM's reduction, {rows[-1][ours]:.0f} with {ours}")
    axes.plot(STATED_PROCESSORS, STATED_GFLOPS, "kx", label="stated in the paper")
    axes.set(xlabel="processors (dotted: LAM's reduction)", ylabel="GFLOP/s")
    axes.legend(fontsize="small")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "paper_figure.svg")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--short", action="store_true", help="small size, as in the tests")
    main(**vars(parser.parse_args()))
