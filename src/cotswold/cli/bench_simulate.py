"""`cotswold bench machine` and `cotswold bench simulate`: this machine as a cluster, predictions beside
measurements.

Knows: the words of the commands, tables. Does not know: how anything is measured or predicted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cotswold.cli.figures import at_least_one, command, cores, leave, ready, table

Overrides = Annotated[list[str] | None, Parameter(name="--set", negative=())]
Json = Annotated[bool, Parameter(name="--json", negative=())]


def machine(
    recipe: str = "faces",
    *,
    set: Overrides = None,
    name: str = "this-machine",
    rounds: int = 5,
    out: Path | None = None,
) -> None:
    """Describe this machine as a cluster for `cotswold simulate`, from measured rates.

    One device a core. Rates are those of a step's operations on the recipe's shapes; latency and bandwidth
    those of an exchange between two processes. Prints the file. Examples:

      cotswold bench machine > mine.toml
      cotswold bench machine demo --out mine.toml
      cotswold simulate mine.toml demo --ranks 1,2

    Parameters
    ----------
    recipe
        A recipe file or the name of a shipped recipe, with stacks.
    set
        Overrides a field, as in training.batch_size=50; may be given again.
    name
        What the cluster is called.
    rounds
        How many times each.
    out
        A file instead of the terminal.
    """
    from cotswold.bench.machine import described, toml
    from cotswold.errors import UserError
    from cotswold.host import available_bytes
    from cotswold.recipe import load
    from cotswold.simulate.work import stack_work

    if out is not None and out.exists():
        raise UserError(f"--out {out} is there already; name another file, or remove it")
    work = stack_work(load(recipe, set or []))
    values = described(name, [work], cores(), available_bytes(), at_least_one(rounds, "--rounds"))
    text = toml(values) + "\n"
    if out is None:
        print(text, end="")
    else:
        ready(out.parent)
        out.write_text(text, encoding="utf-8")


def simulate(*, rounds: int = 5, out: Path | None = None, json_: Json = False) -> None:
    """Predicted updates beside measured ones: 1, 2 and 4 ranks, links shaped as 10 and 1 Gbit/s and not.

    The machine is described as `cotswold bench machine` does it. Needs root, for hosts in network namespaces.
    Takes some minutes. Example:

      cotswold bench simulate --out benchmarks/results

    Parameters
    ----------
    rounds
        How many updates of each.
    out
        A directory for predictions.json.
    json_
        Print JSON.
    """
    from cotswold.bench.foretold import MEDIAN_MOST, WORST_MOST, foretold
    from cotswold.bench.measure import document
    from cotswold.host import available_bytes

    ready(out)
    found = document(
        "predictions", command(), **foretold(at_least_one(rounds, "--rounds"), available_bytes())
    )
    leave(found, "predictions", out, json_)
    if json_:
        return
    shown = ("network", "grid", "link", "measured_seconds", "predicted_seconds", "error")
    rows = found["rows"]
    assert isinstance(rows, list), "a result has rows"
    table("an update", [{name: row[name] for name in shown} for row in rows], sections="link")
    print(f"median error {found['median_error']}, at most {MEDIAN_MOST} is wanted")
    print(f"worst error {found['worst_error']}, at most {WORST_MOST} is wanted")
