"""Simulated failures of servers with copies of buckets: find a seed that breaks a promise, and replay it.

Knows: the options of the command. Does not know: the faults, the judges (`tests/chaos`).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cotswold.errors import UserError
from cotswold.ui.terminal import say
from measures.command import Flag, Json, command, main

sys.path.append(str(Path(__file__).resolve().parents[1]))
from tests.chaos.faults import FAULTS
from tests.chaos.run import live_copies
from tests.chaos.runs import transcript

Names = Annotated[list[str] | None, Parameter(negative=())]
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
    """Run simulated lives of servers with copies of buckets. Each life is a function of its seed.

    Replicas push whole numbers to buckets with copies on several servers, and controllers
    elect primaries. Processes are killed, stopped and cut off, servers drained, messages
    lost, delayed and duplicated, disks full and damaged, clocks drift. The state machines
    are the product's; network, clocks, disks and processes are simulated. Judges that know
    none of the machines look for: two primaries at once, versions that go back, an update
    that is lost or counted twice, copies that differ, a torn checkpoint, fewer copies than
    required, more lost in an outage than allowed, a replica that computes from parameters
    that are too old, clients that wait too long, a life that does not end.

    Exits with 1 if a promise is broken, and prints the life of the first such seed step by step.

    Examples:

      python benchmarks/chaos.py --seeds 1000

      python benchmarks/chaos.py --seeds 1000000 --world everything --out lives

        The same command resumes where it was interrupted.

      python benchmarks/chaos.py --world everything --first 4711 --seeds 1 --out .

        Writes that life to chaos-everything-4711.txt, broken or not.

      python benchmarks/chaos.py --faults

      python benchmarks/chaos.py --fault any-term --world overtaken

    Parameters
    ----------
    seeds
        Number of lives in each world.
    first
        First seed.
    world
        Run this world only; may be given again [all worlds].
    fault
        Plant this fault in the product, to see that a judge finds it.
    faults
        List the faults that can be planted, and exit.
    processes
        Number of processes [one per core].
    out
        Directory for chaos.json, which has the results so far, and for transcripts of broken lives.
    json_
        Print JSON.
    """
    if faults:
        print(*(f"{name:18} {each.sentence}" for name, each in FAULTS.items()), sep="\n")
        return
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, got {seeds}")
    if processes is not None and processes < 1:
        raise UserError(f"--processes must be at least 1, got {processes}")
    if out is not None and not out.is_dir():
        raise UserError(f"--out {out} is not a directory; make it, or give another")
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
            say(f"{path} has the life of seed {number}, step by step")
        if each.broken is not None and not json_:
            print(*lines[-_LAST:], sep="\n")
            again = f"python benchmarks/chaos.py --world '{each.world}' --first {each.broken.seed} --seeds 1"
            print(f"{each.world}, seed {each.broken.seed}: {each.broken.sentence}")
            print(f"replay it: {again}" + (f" --fault {fault}" if fault else ""))
    if any(each.broken is not None for each in found):
        sys.exit(1)


if __name__ == "__main__":
    main(chaos)
