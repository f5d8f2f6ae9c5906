"""Train with a learning-rate scheduler of your own, which takes a step after each epoch.

    python examples/own_scheduler.py runs/scheduler

Start the same command again after a kill: optimiser and scheduler continue from the last checkpoint.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

import cotswold
from cotswold.callbacks import LRMonitor


class Staircase(LRScheduler):
    """Halves the rates after every two epochs."""

    def get_lr(self) -> list[float | Tensor]:
        return [rate * 0.5 ** (self.last_epoch // 2) for rate in self.base_lrs]


def main(directory: Path, short: bool) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(2000 if short else 400, 8)
    targets = inputs.sum(1, keepdim=True).sin()
    run = cotswold.train(
        nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1)),
        (inputs, targets),
        directory=directory,
        loss="squared_error",
        strategy=cotswold.Supervised(epochs=10, batch_size=16, checkpoint_minutes=0.001 if short else 1.0),
        optimizer=partial(torch.optim.NAdam, lr=0.01),
        scheduler=cotswold.PerEpoch(Staircase),
        callbacks=[LRMonitor(every=len(inputs) // 16)],
        resume="if_started",
    )
    rates = {each["step"]: each["group_0"] for each in run.events if each["kind"] == "learning_rates"}
    print(run.status, rates)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="directory of the run")
    parser.add_argument("--short", action="store_true", help="small size, as in the tests")
    main(**vars(parser.parse_args()))
