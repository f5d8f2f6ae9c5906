"""Untie a trained convolution: copy its filters to every position, and train on.

    python examples/untie.py --out runs/untie

The untied network starts with the same outputs. Its filters then adapt to their positions. The digits are
scikit-learn's. The program writes `untie.svg`.
"""

import copy
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from cotswold.nn import LocallyConnected2d

TRAINING = 1200


def train(network: nn.Module, images: Tensor, classes: Tensor, epochs: int) -> list[float]:
    """Train; return the fraction of wrong test images before the first epoch and after each."""
    optimiser = torch.optim.Adam(network.parameters(), lr=0.002)
    errors = []
    for epoch in range(epochs + 1):
        for rows in torch.randperm(TRAINING).split(32) if epoch else ():
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(images[rows]), classes[rows]).backward()
            optimiser.step()
        with torch.no_grad():
            wrong = network(images[TRAINING:]).argmax(1) != classes[TRAINING:]
        errors.append(float(wrong.double().mean()))
    return errors


def main(out: Path, short: bool) -> None:
    torch.manual_seed(0)
    pixels, numbers = load_digits(return_X_y=True)
    order = torch.randperm(len(pixels))
    images = torch.tensor(pixels).float().view(-1, 1, 8, 8)[order] / 16
    classes = torch.tensor(numbers)[order]
    maps = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
    tied = nn.Sequential(*maps, nn.Flatten(), nn.Linear(4 * 3 * 3, 10))
    epochs = 2 if short else 15
    before = train(tied, images, classes, epochs)

    untied = copy.deepcopy(tied)
    conv = untied[0]
    assert isinstance(conv, nn.Conv2d)
    untied[0] = LocallyConnected2d.from_conv(conv, input_size=8)
    with torch.no_grad():
        print(f"largest difference of outputs: {(untied(images) - tied(images)).abs().max():.1e}")

    after = {"tied": train(tied, images, classes, epochs), "untied": train(untied, images, classes, epochs)}
    for name, errors in after.items():
        print(f"{name}: {errors[0]:.3f} of the test images wrong, then {errors[-1]:.3f}")

    figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    axes.plot(range(epochs + 1), before, color="grey", label="convolution")
    for name, errors in after.items():
        axes.plot(range(epochs, 2 * epochs + 1), errors, label=f"{name}, trained on")
    axes.axvline(epochs, color="grey", linestyle=":")
    axes.set(xlabel="epoch", ylabel="fraction of test images wrong", yscale="log")
    axes.legend()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "untie.svg")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--short", action="store_true", help="small size, as in the tests")
    main(**vars(parser.parse_args()))
