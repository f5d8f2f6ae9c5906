"""Train a U-Net on four processes: two replicas, each of which cuts every map into two halves.

    python examples/unet.py runs/unet

The images show discs; each pixel has a class. Start the same command again after a kill: the run continues
from its last checkpoint. The program writes `unet.svg`, with the cut between the two halves.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import cotswold


def double(inputs: int, outputs: int) -> nn.Sequential:
    first = nn.Conv2d(inputs, outputs, 3, padding=1)
    second = nn.Conv2d(outputs, outputs, 3, padding=1)
    return nn.Sequential(first, nn.BatchNorm2d(outputs), nn.ReLU(), second, nn.ReLU())


class UNet(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.down1, self.down2, self.bottom = double(1, 4), double(4, 8), double(8, 16)
        self.up2, self.up1 = nn.ConvTranspose2d(16, 8, 2, 2), nn.ConvTranspose2d(8, 4, 2, 2)
        self.join2, self.join1 = double(16, 8), double(8, 4)
        self.head = nn.Conv2d(4, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        first: Tensor = self.down1(x)
        second: Tensor = self.down2(self.pool(first))
        y: Tensor = self.up2(self.bottom(self.pool(second)))
        y = self.up1(self.join2(torch.cat([second, y], 1)))
        scores: Tensor = self.head(self.join1(torch.cat([first, y], 1)))
        return scores


def discs(count: int, size: int) -> TensorDataset:
    """Return noisy images ``(image, 1, y, x)`` of a bright disc, and the class of each pixel."""
    centres, radii = size * (0.3 + 0.4 * torch.rand(count, 2)), size * (0.1 + 0.2 * torch.rand(count))
    line = torch.arange(size)
    squares = (line - centres[:, :, None]) ** 2
    classes = (squares[:, 0, :, None] + squares[:, 1, None, :] < radii[:, None, None] ** 2).long()
    return TensorDataset((classes + 0.5 * torch.randn(count, size, size))[:, None], classes)


def main(directory: Path, short: bool) -> None:
    torch.manual_seed(0)
    settings = cotswold.Supervised(
        optimizer="adam", epochs=4 if short else 10, batch_size=8, checkpoint_minutes=0.001 if short else 1.0
    )
    data = discs(24, 16) if short else discs(400, 64)
    run = cotswold.train(
        UNet(2),
        data,
        directory=directory,
        loss="cross_entropy",
        strategy=settings,
        validation=0.25,
        grid="1x2",
        replicas=2,
        resume="if_started",
    )
    last = [each for each in run.events if each["kind"] == "validation"][-1]
    print(run.status, last["loss"], last["accuracy"])

    image, classes = data[0]
    with torch.no_grad():
        scores: Tensor = run.load(UNet(2)).eval()(image[None])
    figure, axes = plt.subplots(1, 3, figsize=(6, 2.2), layout="constrained")
    for each, (title, shown) in zip(
        axes, {"image": image[0], "network": scores[0].argmax(0), "truth": classes}.items(), strict=True
    ):
        each.imshow(shown, cmap="gray")
        each.axvline((len(shown) - 1) / 2, color="tab:orange")
        each.set(title=title, xticks=[], yticks=[])
    figure.savefig(directory / "unet.svg")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="directory of the run")
    parser.add_argument("--short", action="store_true", help="small size, as in the tests")
    main(**vars(parser.parse_args()))
