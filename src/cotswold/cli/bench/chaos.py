"""`cotswold bench chaos`: seeded lives of servers that keep copies.

Knows: the words of the command. Does not know: what befalls whom, what must be true.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cotswold.cli.support.tables import command

Names = Annotated[list[str] | None, Parameter(negative=())]
Flag = Annotated[bool, Parameter(negative=())]
Json = Annotated[bool, Parameter(name="--json", negative=())]
_LAST = 60
"""Lines of a transcript that are printed."""


def chaos(
    *,
    seeds: int = 100,
    first: int = 0,
    world: Names = None,
    fault: str | None = None,
    faults: Flag = False,
    processes: int | None = None,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Lives of servers that keep copies of buckets, each a function of its seed.

    Replicas push whole numbers to buckets of which servers keep copies, with controllers
    that elect; processes are killed, stopped and cut off, servers drained, messages lost,
    late and doubled, disks full and damaged, clocks drift. The machines are those that
    run; network, clocks, disks and processes are simulated. Judges that know none of the
    machines look for: two primaries at once, versions that go back, an update that is
    lost or counted twice, copies that differ, a checkpoint that is torn, fewer copies
    than there must be, more lost in an outage than may be, a replica that computes from
    what is too old, clients that wait too long, a life that does not come to its end.
    Exit code 1 where something is broken: of the first seed that is, the life is told
    step for step.

    Examples:

      cotswold bench chaos --seeds 1000

      cotswold bench chaos --seeds 1000000 --world everything --out lives

        The same command goes on where it was ended.

      cotswold bench chaos --world everything --first 4711 --seeds 1 --out .

        chaos-everything-4711.txt has that life, broken or not.

      cotswold bench chaos --faults

      cotswold bench chaos --fault any-term --world overtaken

    Parameters
    ----------
    seeds
        So many lives in each world.
    first
        The first seed.
    world
        Only this world; several if given again. All by default.
    fault
        Plant this mistake, to see that it is found.
    faults
        List the mistakes that can be planted, and live nothing.
    processes
        So many at once; as many as there are cores by default.
    out
        A directory for chaos.json, which has what was lived so far, and the transcript
        of what broke.
    json_
        Print JSON.
    """
    from cotswold.bench.chaos.faults import FAULTS
    from cotswold.bench.chaos.lives import transcript
    from cotswold.bench.chaos.run import live_copies
    from cotswold.errors import UserError
    from cotswold.ui.progress import say

    if faults:
        print(*(f"{name:18} {each.sentence}" for name, each in FAULTS.items()), sep="\n")
        return
    if seeds < 1:
        raise UserError(f"{seeds} seeds are none; give 1 or more")
    if processes is not None and processes < 1:
        raise UserError(f"{processes} processes are none; give 1 or more")
    if out is not None and not out.is_dir():
        raise UserError(f"{out} is no directory; make it, or give another to --out")
    these = range(first, first + seeds)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = live_copies(
        world or [], these, fault=fault, processes=processes or min(cores, seeds), out=out, say=say
    )
    told = {"command": command(), "fault": fault, "worlds": [each.as_json() for each in found]}
    if json_:
        print(json.dumps(told))
    width = max((len(each.world) for each in found), default=0)
    for each in found:
        if not json_:
            print(
                f"{each.world:{width}} {each.lives:9,} lives of {each.lived_seconds / each.lives:5.1f} s, "
                f"{each.messages:13,} messages, {each.said:12,} answers judged, in {each.seconds:7.1f} s"
            )
        if each.broken is None and seeds > 1:
            continue
        lines = transcript(each.world, first if each.broken is None else each.broken.seed, fault)
        if out is not None:
            number = first if each.broken is None else each.broken.seed
            path = out / f"chaos-{each.world.replace(' ', '-')}-{number}.txt"
            path.write_text("\n".join(lines) + "\n")
            say(f"{path} has the life of seed {number}, step for step")
        if each.broken is not None and not json_:
            print(*lines[-_LAST:], sep="\n")
            again = f"cotswold bench chaos --world '{each.world}' --first {each.broken.seed} --seeds 1"
            print(f"{each.world}, seed {each.broken.seed}: {each.broken.sentence}")
            print(f"again, step for step: {again}" + (f" --fault {fault}" if fault else ""))
    if any(each.broken is not None for each in found):
        sys.exit(1)
