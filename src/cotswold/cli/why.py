"""`cotswold why`.

Knows: the words of the command. Does not know: how it is found out.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def why(
    run: Path,
    *,
    stacks: Annotated[bool, Parameter(negative=())] = False,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Say what a run does now, who waits for whom and since when; of one that is over, how it ended.

    Of strategy downpour what each replica and parameter server does, and at whom all
    waiting ends; of others how far they are. Nothing is changed, and the run goes on.

    Examples:

      cotswold why runs/mine
      cotswold why runs/mine --stacks
      watch cotswold why runs/mine

    Parameters
    ----------
    run
        The run's directory.
    stacks
        Have every process of the run on this machine write the stacks of its threads into the run's logs
        (by a signal, which works where Python hangs, too), and print them.
    json_
        Print JSON.
    """
    import cotswold
    from cotswold.api.status import lines
    from cotswold.ui.progress import printable

    found = cotswold.why(run, stacks=stacks)
    if json_:
        print(json.dumps({**asdict(found), "run": str(found.run)}, indent=1))
        return
    for line in lines(found):
        indent = line[: len(line) - len(line.lstrip())]
        print(f"{indent}{printable(line)}")
