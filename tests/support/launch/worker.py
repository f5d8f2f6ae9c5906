"""A rank of the tests: exchanges in a loop, and fails as told by its arguments.

Knows: the launch package, torch.distributed. Does not know: its observers.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from cotswold.errors import CotswoldError, UserError
from cotswold.launch import join, world_of

AT_STEP = 3
"""The step at which a rank fails."""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=float, default=2.0)
    parser.add_argument("--arrival", type=float, default=30.0)
    parser.add_argument("--stall", type=float)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--facts", nargs="*", default=[], help="the fact 'recipe' of each rank")
    parser.add_argument("--folder", type=Path, help="a file for each rank's newest step")
    parser.add_argument("--on", nargs=2, metavar=("RANK", "DEED"), default=("-1", ""))
    given = parser.parse_args(words)
    world = world_of(os.environ)
    assert world is not None
    deed = given.on[1] if int(given.on[0]) == world.rank else ""
    stops: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: stops.append(number))
    facts = {"recipe": given.facts[world.rank]} if given.facts else {}
    try:
        with join(
            world,
            timeout_seconds=given.timeout,
            arrival_seconds=given.arrival,
            stall_seconds=given.stall,
            facts=facts,
            note="the last checkpoint is whole",
        ) as ranks:
            assert ranks.gather({"rank": world.rank}) == [{"rank": each} for each in range(world.size)]
            for step in range(given.steps):
                if step == AT_STEP and deed:
                    do(deed)
                    if deed == "leave":
                        break
                if given.on[1] == "hang" and step == AT_STEP:
                    ranks.barrier()
                if given.on[1] == "leave" and step >= AT_STEP:
                    time.sleep(0.01)  # alone, without the one that has left
                    continue
                told = torch.tensor([float(max(stops, default=0)), 1.0])
                dist.all_reduce(told, dist.ReduceOp.MAX)
                if given.folder:
                    (given.folder / f"{world.rank}-{os.getpid()}").write_text(str(step))
                if told[0]:
                    print(f"rank {world.rank} stopped after step {step}", flush=True)
                    return 128 + int(told[0])
                time.sleep(0.005)
            ranks.barrier() if given.on[1] != "leave" else None
        print(f"rank {world.rank} has finished", flush=True)
    except CotswoldError as error:
        print(f"cotswold: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def do(deed: str) -> None:
    match deed:
        case "raise":
            raise ValueError("the third step is too hard")
        case "mistake":
            raise UserError("the third step was never asked for; ask for it")
        case "memory":
            raise MemoryError
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang":
            os.read(
                os.pipe()[0], 1
            )  # as a write to a file server that is gone: it beats, and comes to no end
        case "quit":
            os._exit(7)


if __name__ == "__main__":
    sys.exit(main())
