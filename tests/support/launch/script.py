"""A user's script: its own process group, a partitioned module, a loop; without `cotswold train`.

Knows: torch.distributed, the library's `join`. Does not know: its observers.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from cotswold.errors import CotswoldError
from cotswold.launch import join
from cotswold.mesh import partition

AT_STEP = 3


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kill", type=int, default=-1, help="the rank that is killed")
    parser.add_argument("--fail", type=int, default=-1, help="the rank that raises an error")
    parser.add_argument("--absent", type=int, default=-1, help="the rank that does not join")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--part", type=int, nargs="*", help="the ranks of a group of their own that join")
    parser.add_argument("--timeout", type=float, default=4.0)
    parser.add_argument("--arrival", type=float, default=60.0)
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--destroy", action="store_true", help="end the job's group inside of the block")
    parser.add_argument("--exit", type=int, help="sys.exit with this inside of the block")
    given = parser.parse_args(words)
    dist.init_process_group("gloo")
    rank, before = dist.get_rank(), describe_environment()
    group = dist.new_group(given.part) if given.part else None
    if rank == given.absent:
        time.sleep(60)
    if given.part and rank not in given.part:
        time.sleep(60) if given.kill >= 0 else dist.barrier()  # the store goes with rank 0
        return 0
    try:
        for _ in range(1 + given.twice):
            with join(
                group=group,
                facts={"rate": "0.1"},
                timeout_seconds=given.timeout,
                arrival_seconds=given.arrival,
            ) as ranks:
                assert ranks.gather(rank) == (given.part or [0, 1])
                train(given, rank, f"1x{ranks.size}")
                if given.destroy:
                    dist.destroy_process_group()
                if given.exit is not None and rank == 1:
                    sys.exit(given.exit)
    except CotswoldError as error:
        print(f"cotswold: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    assert describe_environment() == before
    if not given.destroy and given.exit is None:
        dist.barrier()  # the job's group is there as before
    print(f"rank {rank} has finished\n", end="", flush=True)  # one write, also where nothing is buffered
    return 0


def describe_environment() -> dict[str, str]:
    """Return the environment without the variables that torch's compiler sets."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TORCHINDUCTOR")}


def train(given: argparse.Namespace, rank: int, grid: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Conv2d(2, 1, 3))
    model = net if given.part else partition(net, grid)
    images = torch.rand(2, 1, 12, 12)
    for step in range(given.steps):
        if step == AT_STEP and rank == given.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == AT_STEP and rank == given.fail:
            raise ValueError("the third step is too hard")
        model(images).square().mean().backward()


if __name__ == "__main__":
    sys.exit(main())
