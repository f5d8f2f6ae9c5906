"""A training whose parameters are counts: each number of them is how many steps the servers took.

Knows: a module whose gradient is one everywhere, how runs are begun, what a checkpoint holds. Does not know:
faults, hosts.

Each batch has as many samples as any other, and moves each parameter by -1, a whole number as float32 has
all of them up to 2^24. So when all is over the parameters say how many batches each shard has learnt,
whatever befell the servers that had it: an update that was lost, or counted twice, is another number than
that of the ledger.

    python -m lib.fault_training.tally RUN --parameter-servers 10.0.0.1,10.0.0.2
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import cotswold
from lib.fault_training.audit import Verdict, last_checkpoint

BATCH = 32
SAMPLES = 1 << 16
SHARD_KILOBYTES = 16
SHARD = SHARD_KILOBYTES * 1024 // 4
_SHARDS = 64
_BUCKETS = 32
_STEP_SECONDS = 0.04
"""That a batch takes a replica: so it does not disturb what is trained beside it."""


class Counts(nn.Module):
    """Each sample's output is the sum of all parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(_SHARDS * SHARD))

    def forward(self, samples: Tensor) -> Tensor:
        """(samples, 1) of anything to (samples,)."""
        time.sleep(_STEP_SECONDS)
        return self.counts.sum().expand(samples.shape[0])


def output(found: Tensor, _: Tensor) -> Tensor:
    """The loss: the mean of (samples,) outputs, whose gradient is 1 for each parameter."""
    return found.mean()


def count(run: Path, parameter_servers: str) -> int:
    """Train until SIGTERM."""
    stop = cotswold.Stop()

    def leave(number: int, _: object) -> None:
        stop.signal = number

    signal.signal(signal.SIGTERM, leave)
    samples = torch.zeros(SAMPLES, 1)
    cotswold.train(
        Counts(),
        (samples, torch.zeros(SAMPLES)),
        run,
        loss=output,
        strategy="downpour",
        rule="sgd",
        learning_rate=1.0,
        batch_size=BATCH,
        epochs=1_000_000,
        shard_kilobytes=SHARD_KILOBYTES,
        parameter_servers=parameter_servers,
        buckets=_BUCKETS,
        workers=1,
        stop=stop,
    )
    return 128 + (stop.signal or 0)


def counts_are_exact(run: Path) -> Verdict:
    """Each parameter is the number of batches that the ledger has counted, and at most those more that the
    ledger calls torn."""
    account = _account(last_checkpoint(run))
    learnt, torn = account["counted"], account["torn"]
    found = _batches(run)
    right = range(learnt // BATCH, (learnt + torn) // BATCH + 1)
    wrong = [each for each in found if each not in right]
    words = (
        f"{len(found)} shards have {_said(found)} batches, the ledger {learnt:,} samples of {BATCH} a batch"
    )
    holds = not wrong and learnt > 0
    return Verdict("updates add up exactly", holds, f"{words}, {torn} torn" if torn else words)


def _account(state: Mapping[str, Any]) -> dict[str, int]:
    accounts = state["ledger"]["accounts"].values()
    return {name: sum(each[name] for each in accounts) for name in ("counted", "torn")}


def _batches(run: Path) -> list[float]:
    """By shard; a shard whose parameters differ gives each number that is in it."""
    newest = sorted((run / "checkpoints").iterdir())[-1]
    (counts,) = (each for file in newest.glob("*.safetensors") for each in load_file(file).values())
    return [float(-each) for shard in torch.split(counts, SHARD) for each in set(shard.tolist())]


def _said(counts: list[float]) -> str:
    least, most = min(counts), max(counts)
    return f"{least:,g}" if least == most else f"{least:,g} to {most:,g}"


def main() -> None:
    """The words of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--parameter-servers", required=True)
    given = parser.parse_args()
    sys.exit(count(given.run, given.parameter_servers))


if __name__ == "__main__":
    main()
