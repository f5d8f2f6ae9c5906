"""A training whose parameters count the steps of the servers.

Knows: a module whose gradient is one everywhere, how runs are started, the contents of a checkpoint. Does not
know: faults, hosts.

All batches have the same number of samples, and each batch moves each parameter by -1, exactly in float32 up
to 2^24. So at the end the parameters show how many batches each shard has learnt, after any faults of its
servers: an update that was lost or counted twice makes a number that differs from the ledger's.

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
"""Seconds of a batch, long enough not to disturb the main training."""


class Counts(nn.Module):
    """A module whose output for each sample is the sum of all parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(_SHARDS * SHARD))

    def forward(self, samples: Tensor) -> Tensor:
        """Map (samples, 1) of any values to (samples,)."""
        time.sleep(_STEP_SECONDS)
        return self.counts.sum().expand(samples.shape[0])


def output(found: Tensor, _: Tensor) -> Tensor:
    """Return the loss: the mean of (samples,) outputs, whose gradient is 1 for each parameter."""
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
        directory=run,
        loss=output,
        learning_rate=1.0,
        batch_size=BATCH,
        epochs=1_000_000,
        stop=stop,
        strategy=cotswold.Downpour(
            update_rule="sgd",
            shard_kilobytes=SHARD_KILOBYTES,
            controllers=parameter_servers,
            max_buckets=_BUCKETS,
            workers=1,
        ),
    )
    return 128 + (stop.signal or 0)


def counts_are_exact(run: Path) -> Verdict:
    """Check that each parameter equals the number of batches counted by the ledger, plus at most the batches
    that the ledger calls torn."""
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
    """Return the batches of each shard; a shard with different parameters gives each distinct value."""
    newest = sorted((run / "checkpoints").iterdir())[-1]
    (counts,) = (each for file in newest.glob("*.safetensors") for each in load_file(file).values())
    return [float(-each) for shard in torch.split(counts, SHARD) for each in set(shard.tolist())]


def _said(counts: list[float]) -> str:
    least, most = min(counts), max(counts)
    return f"{least:,g}" if least == most else f"{least:,g} to {most:,g}"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--parameter-servers", required=True)
    given = parser.parse_args()
    sys.exit(count(given.run, given.parameter_servers))


if __name__ == "__main__":
    main()
