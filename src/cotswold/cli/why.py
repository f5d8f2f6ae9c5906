"""`cotswold why`.

Knows: the arguments of the command. Does not know: how the status is determined.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cotswold.cli.support.json_output import Json, print_json


def why(
    run: Path,
    *,
    stacks: Annotated[bool, Parameter(negative=())] = False,
    json_: Json = False,
) -> None:
    """Show what a run is doing now, and which process waits for which; or how it ended.

    For strategy downpour: the status of each replica and parameter server, and the processes at the root of
    all waiting; for other strategies the progress. The run is not changed or interrupted.

    Examples:

      cotswold why runs/mine
      cotswold why runs/mine --stacks
      watch cotswold why runs/mine

    Parameters
    ----------
    run
        The run's directory.
    stacks
        Let every process of the run on this machine write the stacks of its threads into the run's logs (by a
        signal, which works even if Python hangs), and print them, by the names of ranks, replicas and
        workers.
    json_
        Print JSON.
    """
    import cotswold
    from cotswold.api.status import lines
    from cotswold.ui.terminal import printable

    found = cotswold.why(run, stacks=stacks)
    if json_:
        print_json("why", {**asdict(found), "run": str(found.run)})
        return
    for line in lines(found):
        indent = line[: len(line) - len(line.lstrip())]
        print(f"{indent}{printable(line)}")
