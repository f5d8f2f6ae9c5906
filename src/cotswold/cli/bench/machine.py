"""`cotswold bench machine`: describe this machine as a cluster.

Knows: the arguments of the command. Does not know: how anything is measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cotswold.cli.support.tables import create_result_folder

Overrides = Annotated[list[str] | None, Parameter(name="--set", negative=())]


def machine(
    recipe: str = "faces",
    *,
    set: Overrides = None,
    name: str = "this-machine",
    rounds: int = 5,
    out: Path | None = None,
) -> None:
    """Describe this machine as a cluster for `cotswold simulate`, from measured rates.

    One device per core. Rates are measured with a step's operations on the recipe's shapes; latency and
    bandwidth with messages between two processes. Prints the file.

    Examples:

      cotswold bench machine > mine.toml
      cotswold bench machine demo --out mine.toml
      cotswold simulate mine.toml demo --ranks 1,2

    Parameters
    ----------
    recipe
        A recipe file or the name of a shipped recipe, with stacks.
    set
        Override a field, as in training.batch_size=50; may be given again.
    name
        Name of the cluster.
    rounds
        Number of repetitions of each measurement.
    out
        Write a file instead of printing.
    """
    from cotswold.bench import describe_machine
    from cotswold.errors import UserError

    if out is not None and out.exists():
        raise UserError(f"--out {out} exists already; give another file, or remove it")
    text = describe_machine(recipe, overrides=set or [], name=name, rounds=rounds)
    if out is None:
        print(text, end="")
    else:
        create_result_folder(out.parent)
        out.write_text(text, encoding="utf-8")
