"""`cotswold doctor`.

Knows: the arguments of the command, its table, exit codes. Does not know: how anything is found out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from cotswold.cli.support.json_output import Json, print_json

if TYPE_CHECKING:
    from cotswold.cli.doctor.finding import Finding


def doctor(*, json_: Json = False) -> int:
    """Show what this machine has, what Cotswold will use, what is missing, and how to get it.

    Each line is `ok`; `note`, for a part that only some commands need, or that limits their
    speed or size; or `problem`, for what prevents training here or makes it several times
    slower. Below a note or a problem is the command that changes it. Nothing is changed.

    Exit code 0: no problem, notes do not count; 1: at least one problem; 2: a user error.

    For instance:

      cotswold doctor
      cotswold doctor --json
      cotswold doctor -q                       problems and notes only

    Parameters
    ----------
    json_
        Print JSON.
    """
    from cotswold.cli.doctor.choices import choices
    from cotswold.cli.doctor.finding import PROBLEM
    from cotswold.cli.doctor.hardware import hardware
    from cotswold.cli.doctor.software import software
    from cotswold.cli.doctor.system import system
    from cotswold.ui.terminal import is_quiet

    found = [*hardware(), *system(), *software(), *choices()]
    problems = sum(each.status == PROBLEM for each in found)
    if json_:
        print_json("doctor", {"is_fine": not problems, "findings": [asdict(each) for each in found]})
    else:
        print(*lines(found, only_remarks=is_quiet()), sep="\n")
    return 1 if problems else 0


def lines(found: Sequence[Finding], *, only_remarks: bool = False) -> Iterator[str]:
    """Yield the findings by topic, in 80 columns; ``only_remarks`` leaves out what is in order."""
    import textwrap

    from cotswold.cli.doctor.finding import NOTE, OK, PROBLEM
    from cotswold.phrases import counted
    from cotswold.ui.terminal import printable

    shown = [each for each in found if not (only_remarks and each.status == OK)]
    width = max((len(each.name) for each in shown), default=0)
    topic = ""
    for each in shown:
        if each.topic != topic:
            topic = each.topic
            yield f"{topic}:"
        start = f"  {each.status:7}  {each.name:{width}}  "
        yield textwrap.fill(
            printable(each.value),
            80,
            initial_indent=start,
            subsequent_indent=" " * len(start),
            break_on_hyphens=False,
        )
        if each.remedy:
            yield f"{' ' * len(start)}-> {each.remedy}"  # one line, to be copied
    counts = [counted(sum(each.status == kind for each in found), kind) for kind in (PROBLEM, NOTE)]
    yield " and ".join(counts)
