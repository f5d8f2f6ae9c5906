"""Measure metrics by name, a metric of your own as a class, and another as a function.

    python examples/own_metric.py runs/metric

Start the same command again after a kill: the run continues from its last checkpoint.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import torch
from torch import Tensor, nn

import cotswold


class WorstClass:
    """The accuracy of the class with the lowest accuracy."""

    name = "worst_class"

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.reset()

    def reset(self) -> None:
        self.right, self.all = torch.zeros(self.classes), torch.zeros(self.classes)

    def update(self, output: Tensor, target: Tensor) -> None:
        self.right += torch.bincount(target[output.argmax(1) == target], minlength=self.classes)
        self.all += torch.bincount(target, minlength=self.classes)

    def compute(self) -> float:
        return float((self.right / self.all).min())


def confidence(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean probability of the right class."""
    return output.softmax(1).gather(1, target[:, None]).mean()


def main(directory: Path, short: bool) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(401, 6)
    targets = (inputs.sum(1) > 0).long() + (inputs[:, 0] > 0).long()
    run = cotswold.train(
        nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)),
        (inputs[:300], targets[:300]),
        directory=directory,
        loss="cross_entropy",
        strategy=cotswold.Supervised(
            epochs=60 if short else 10, batch_size=16, checkpoint_minutes=0.001 if short else 1.0
        ),
        validation=(inputs[300:], targets[300:]),
        metrics=["macro_f1", "top2", WorstClass(3), confidence],
        resume="if_started",
    )
    last = [each for each in run.events if each["kind"] == "validation"][-1]
    for name in ("accuracy", "macro_f1", "top2", "worst_class", "confidence"):
        print(name, last[name])


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="directory of the run")
    parser.add_argument("--short", action="store_true", help="small size, as in the tests")
    main(**vars(parser.parse_args()))
