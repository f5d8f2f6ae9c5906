"""Log a run for Weights & Biases without a connection, and to a CSV file.

    python examples/wandb_offline.py runs/logged

Needs the package wandb. Later, `wandb sync` sends the folder that the program names. Start the same command
again after a kill: the run continues from its last checkpoint, in a new folder with the same id.
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import torch
from torch import nn

import cotswold


def main(directory: Path, short: bool) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(200, 6)
    targets = (inputs.sum(1) > 0).long()
    run = cotswold.train(
        nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)),
        (inputs, targets),
        directory=directory,
        loss="cross_entropy",
        strategy=cotswold.Supervised(
            epochs=80 if short else 20, batch_size=16, checkpoint_minutes=0.001 if short else 1.0
        ),
        validation=0.2,
        loggers=["wandb", "csv"],
        resume="if_started",
    )
    last = (run.path / "metrics.csv").read_text().splitlines()
    print(run.status, last[0])
    for folder in sorted((run.path / "wandb").glob("offline-run-*")):
        print("wandb sync", folder, file=sys.stderr)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="directory of the run")
    parser.add_argument("--short", action="store_true", help="small size, as in the tests")
    main(**vars(parser.parse_args()))
