"""`cotswold bench chaos`: seeded lives of servers that keep copies.

Knows: the words of the command. Does not know: what befalls whom, what must be true.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cotswold.cli.figures import command

Names = Annotated[list[str] | None, Parameter(negative=())]
Json = Annotated[bool, Parameter(name="--json", negative=())]


def chaos(
    *,
    seeds: int = 100,
    first: int = 0,
    world: Names = None,
    fault: str | None = None,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Lives of servers that keep copies of buckets, each a function of its seed.

    Replicas push whole numbers to buckets of which servers keep copies, with controllers
    that elect; processes are killed, stopped and cut off, messages are lost, late and
    doubled, clocks drift. The machines are those that run; network, clocks and processes
    are simulated. Judges that know none of the machines look for: two primaries at once,
    versions that go back, an update that is lost or counted twice, copies that differ,
    a life that does not come to its end. Exit code 1 where something is broken.

    Examples:

      cotswold bench chaos --seeds 1000

      cotswold bench chaos --world everything --first 4711 --seeds 1

      cotswold bench chaos --fault at-once

      cotswold bench chaos --seeds 1000000 --world everything --out .

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
    out
        A directory for chaos.json, with the transcript of what broke.
    json_
        Print JSON.
    """
    from cotswold.api.progress import say
    from cotswold.bench.chaos.run import live_copies
    from cotswold.errors import UserError

    if seeds < 1:
        raise UserError(f"{seeds} seeds are none; give 1 or more")
    if out is not None and not out.is_dir():
        raise UserError(f"{out} is no directory; make it, or give another to --out")
    found = live_copies(world or [], range(first, first + seeds), fault=fault, say=say)
    told = {"command": command(), "fault": fault, "worlds": [each.as_json() for each in found]}
    if out is not None:
        (out / "chaos.json").write_text(json.dumps(told, indent=1) + "\n")
    if json_:
        print(json.dumps(told))
    else:
        for each in found:
            print(
                f"{each.world:13} {each.lives:8,} lives of {each.lived_seconds / each.lives:5.1f} s, "
                f"{each.messages:12,} messages, {each.said:11,} answers judged, in {each.seconds:6.1f} s"
            )
            if each.broken is not None:
                print(*each.broken.transcript[-40:], sep="\n")
                print(f"{each.world}, seed {each.broken.seed}: {each.broken.sentence}")
    if any(each.broken is not None for each in found):
        sys.exit(1)
