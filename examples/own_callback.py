"""Write a callback that keeps state in the checkpoints, writes events, and ends the run.

    python examples/own_callback.py runs/callback

Start the same command again after a kill: the callback's list continues from the last checkpoint, too.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

import cotswold
from cotswold.callbacks import Callback, CallbackContext, StopTraining


class Distance(Callback):
    """Keeps the distance of the weights from zero at each epoch; ends the run when it is large enough."""

    def __init__(self, most: float) -> None:
        self.most = most
        self.norms = torch.zeros(0)

    def on_epoch_end(self, context: CallbackContext) -> None:
        if context.module is None:
            return
        vector = nn.utils.parameters_to_vector(context.module.parameters()).detach()
        self.norms = torch.cat([self.norms, vector.square().sum().sqrt()[None]])
        norm = float(self.norms[-1])
        context.event("distance", step=context.step, norm=norm)
        if norm > self.most:
            raise StopTraining(f"the norm of the weights is {norm:.3f}")

    def state_dict(self) -> dict[str, Tensor]:
        return {"norms": self.norms}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.norms = state["norms"]


def main(directory: Path, short: bool) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(2000 if short else 600, 8)
    distance = Distance(most=8.0)
    run = cotswold.train(
        nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)),
        (inputs, (inputs.sum(1) > 0).long()),
        directory=directory,
        loss="cross_entropy",
        strategy=cotswold.Supervised(
            epochs=30, batch_size=20, schedule="constant", checkpoint_minutes=0.001 if short else 1.0
        ),
        callbacks=[distance],
        resume="if_started",
    )
    print(run.status, run.events[-1].get("reason"))
    print(distance.norms)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="directory of the run")
    parser.add_argument("--short", action="store_true", help="small size, as in the tests")
    main(**vars(parser.parse_args()))
