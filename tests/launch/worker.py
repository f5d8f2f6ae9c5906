"""A rank of the tests: exchanges in a loop, and does what its words say.

Knows: the launch package, torch.distributed. Does not know: who looks at it.

Words: ``--patience S``, ``--arrival S``, ``--steps N``, ``--fact NAME=VALUE``, ``--log FILE`` (one line a step),
and ``--on RANK DEED`` for what a rank does before it joins (``never``) or at the third step: ``raise``, ``mistake``,
``memory``, ``kill``, ``leave`` (finish at once), ``quit`` (end without a word), ``stop`` (SIGSTOP).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from cotswold.errors import CotswoldError, UserError
from cotswold.launch import join, world_of

AT_STEP = 3


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--patience", type=float, default=2.0)
    parser.add_argument("--arrival", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--fact", action="append", default=[])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--on", nargs=2, action="append", default=[])
    words = parser.parse_args()
    world = world_of(os.environ)
    assert world is not None
    deeds = {int(rank): deed for rank, deed in words.on}
    deed = deeds.get(world.rank)
    if deed == "never":
        time.sleep(60)
    stops: list[int] = []
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda number, _: stops.append(number))
    facts = dict(fact.split("=", 1) for fact in words.fact if not fact[0].isdigit())
    facts |= dict(fact[2:].split("=", 1) for fact in words.fact if fact.startswith(f"{world.rank}:"))
    try:
        with join(
            world, patience_seconds=words.patience, arrival_seconds=words.arrival, facts=facts
        ) as membership:
            assert membership.gather({"rank": world.rank}) == [{"rank": r} for r in range(world.size)]
            print(f"rank {world.rank} of {world.size} has joined", flush=True)
            for step in range(words.steps):
                if step == AT_STEP and deed is not None:
                    do(deed)
                    if deed == "leave":
                        break
                if "leave" in deeds.values() and step >= AT_STEP:
                    time.sleep(0.01)
                    continue
                number = torch.tensor([1.0 if stops else 0.0, 1.0])
                dist.all_reduce(number)
                assert number[1] == world.size
                if words.folder:
                    (words.folder / f"{world.rank}-{os.getpid()}").write_text(str(step))
                if number[0]:
                    print(f"rank {world.rank} stopped after step {step}", flush=True)
                    return 128 + (stops[0] if stops else signal.SIGTERM)
                time.sleep(0.01)
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
        case "quit":
            os._exit(7)


if __name__ == "__main__":
    sys.exit(main())
