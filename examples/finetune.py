"""Fine-tune a network from saved weights: AdamW with two rates, bf16, two replicas.

    python examples/finetune.py runs/finetune

A small residual network stands for one of timm. It learns three classes, and its weights are saved. Another
one with a new head learns five classes from there. Start the same command again after a kill: the run
continues from its last checkpoint.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import cotswold


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(Block(3, 8, 1), Block(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(16, classes))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.backbone(x))
        return scores


def images(classes: int, count: int) -> TensorDataset:
    """Return noise in which each class has stripes of its own width."""
    labels = torch.arange(count) % classes
    waves = torch.sin(torch.arange(16) / (1.0 + labels[:, None]))
    return TensorDataset(torch.randn(count, 3, 16, 16) + waves[:, None, :, None], labels)


def main(directory: Path, short: bool) -> None:
    torch.manual_seed(0)
    first, weights, place = ResNet(3), directory / "weights.pt", directory / "first"
    if not weights.exists():
        cotswold.train(
            first, images(3, 96 if short else 960), directory=place, loss="cross_entropy", resume="if_started"
        )
        torch.save(first.state_dict(), directory / "unfinished.pt")
        (directory / "unfinished.pt").replace(weights)

    torch.manual_seed(1)
    module = ResNet(5)
    saved: dict[str, Tensor] = torch.load(weights, weights_only=True)
    module.load_state_dict({name: each for name, each in saved.items() if "head" not in name}, strict=False)
    groups = [
        {"params": module.backbone.parameters(), "lr": 1e-3, "name": "backbone"},
        {"params": module.head.parameters(), "lr": 1e-2, "name": "head"},
    ]
    minutes = 0.001 if short else 1.0
    run = cotswold.train(
        module,
        images(5, 160 if short else 1600),
        directory=directory / "tuned",
        loss="cross_entropy",
        strategy=cotswold.Supervised(epochs=6, precision="bf16-mixed", checkpoint_minutes=minutes),
        optimizer=torch.optim.AdamW(groups, weight_decay=0.02),
        validation=0.2,
        replicas=2,
        resume="if_started",
    )
    last = [each for each in run.events if each["kind"] == "validation"][-1]
    print(run.status, last["loss"], last["accuracy"])


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="directory of the run")
    parser.add_argument("--short", action="store_true", help="small size, as in the tests")
    main(**vars(parser.parse_args()))
