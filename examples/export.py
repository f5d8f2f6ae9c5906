"""Train, export the network by torch.export, and use the file in a process that cannot import Cotswold.

    python examples/export.py runs/export

Start the same command again after a kill: the run continues from its last checkpoint.
"""

import subprocess
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import torch
from torch import Tensor, nn

import cotswold

READER = """
import json, sys
sys.modules["cotswold"] = None  # from here on `import cotswold` fails
import torch
files = {"cotswold.json": ""}
program = torch.export.load(sys.argv[1], extra_files=files).module()
images, expected = torch.load(sys.argv[2], weights_only=True)
print(json.loads(files["cotswold.json"])["inputs"])
print("largest difference:", float((program(images) - expected).abs().max()))
"""


def network() -> nn.Sequential:
    maps = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
    return nn.Sequential(maps, nn.Flatten(), nn.Linear(16, 3))


def main(directory: Path, short: bool) -> None:
    torch.manual_seed(0)
    images, classes = torch.rand(120, 1, 8, 8), torch.arange(120) % 3
    images[classes == 1, :, :4] += 0.5
    images[classes == 2, :, 4:] += 0.5
    run = cotswold.train(
        network(),
        (images, classes),
        directory=directory / "run",
        loss="cross_entropy",
        strategy=cotswold.Supervised(
            epochs=50 if short else 10, batch_size=10, checkpoint_minutes=0.001 if short else 1.0
        ),
        validation=0.2,
        resume="if_started",
    )
    program, card, checks = (directory / name for name in ("network.pt2", "README.md", "checks.pt"))
    if not program.exists():  # a restarted program has it
        run.export(program, module=network(), example=torch.zeros(2, 1, 8, 8))
    if not card.exists():
        run.card(card, license="apache-2.0")
    with torch.no_grad():
        scores: Tensor = run.load(network())(images)
    torch.save((images, scores), checks)
    subprocess.run([sys.executable, "-c", READER, str(program), str(checks)], check=True)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="directory of the run")
    parser.add_argument("--short", action="store_true", help="small size, as in the tests")
    main(**vars(parser.parse_args()))
