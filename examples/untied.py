"""Compare an untied convolution with a tied one: on centred digits, and on digits at random places.

    python examples/untied.py --out runs/untied

Filters of their own at each position fit images whose parts keep their places, and cost accuracy elsewhere.
The digits are scikit-learn's. The program writes `untied.svg`.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from cotswold.nn import LocallyConnected2d

SIZE, TRAINING = 16, 1200


def digits(is_moved: bool) -> tuple[Tensor, Tensor]:
    """Return images ``(image, 1, 16, 16)`` of a digit in the centre or at a random place, and classes."""
    pixels, classes = load_digits(return_X_y=True)
    images = torch.zeros(len(pixels), 1, SIZE, SIZE)
    for image, digit in zip(images, torch.tensor(pixels).view(-1, 8, 8).float() / 16, strict=True):
        top, left = torch.randint(SIZE - 7, (2,)).tolist() if is_moved else (4, 4)
        image[0, top : top + 8, left : left + 8] = digit
    return images, torch.tensor(classes)


def train(first: nn.Module, images: Tensor, classes: Tensor, epochs: int) -> float:
    """Train a network with this first layer; return its accuracy on the images that are left."""
    network = nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(4 * 4 * 4, 10))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.003)
    order = torch.randperm(len(images))
    for _ in range(epochs):
        for rows in order[:TRAINING][torch.randperm(TRAINING)].split(32):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(images[rows]), classes[rows]).backward()
            optimiser.step()
    with torch.no_grad():
        test = order[TRAINING:]
        return float((network(images[test]).argmax(1) == classes[test]).double().mean())


def main(out: Path, short: bool) -> None:
    epochs, seeds = (1, 1) if short else (20, 3)
    found: dict[str, list[float]] = {"tied": [], "untied": []}
    for is_moved in (False, True):
        for name, values in found.items():
            accuracies = []
            for seed in range(seeds):
                torch.manual_seed(seed)
                images, classes = digits(is_moved)
                tied, untied = nn.Conv2d(1, 4, 5), LocallyConnected2d(1, 4, input_size=SIZE, kernel_size=5)
                accuracies.append(train(tied if name == "tied" else untied, images, classes, epochs))
            values.append(sum(accuracies) / seeds)
            print(f"{'moved' if is_moved else 'centred'} digits, {name}: accuracy {values[-1]:.3f}")

    figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    for place, (name, values) in enumerate(found.items()):
        bars = axes.bar([place * 0.4, 1 + place * 0.4], values, 0.38, label=f"{name} filters")
        axes.bar_label(bars, fmt="%.3f")
    axes.set_xticks([0.2, 1.2], ["digits in the centre", "digits at random places"])
    axes.set(ylabel="accuracy on test images", ylim=(0, 1.15))
    axes.legend()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "untied.svg")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--short", action="store_true", help="small size, as in the tests")
    main(**vars(parser.parse_args()))
