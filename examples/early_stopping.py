"""Stop when the validation accuracy no longer rises, and keep an average of the weights (EMA).

    python examples/early_stopping.py runs/early

Start the same command again after a kill: patience, average and weights continue from the last checkpoint.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import cotswold
from cotswold.callbacks import EarlyStopping, ModelEMA


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))


def main(directory: Path, short: bool) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(400, 8)
    classes = (inputs[:, 0] > 0).long() + (inputs[:, 1:3].prod(1) > 0).long()
    module = network()
    run = cotswold.train(
        module,
        TensorDataset(inputs, classes),
        directory=directory,
        loss="cross_entropy",
        strategy=cotswold.Supervised(
            optimizer="adam", epochs=200, batch_size=16, checkpoint_minutes=0.001 if short else 1.0
        ),
        validation=0.2,
        callbacks=[ModelEMA(0.99), EarlyStopping(monitor="accuracy", mode="max", patience=10)],
        resume="if_started",
    )
    end = run.events[-1]
    print(run.status, end.get("reason"))
    best = run.load(network())  # the average with the best validation; `module` has the last weights
    with torch.no_grad():
        for each in (best, module):
            scores: torch.Tensor = each(inputs)
            print(float((scores.argmax(1) == classes).float().mean()))


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="directory of the run")
    parser.add_argument("--short", action="store_true", help="small size, as in the tests")
    main(**vars(parser.parse_args()))
