"""Train in DistributedDataParallel on batches that data servers read and augment.

    torchrun --standalone --nproc-per-node 2 examples/data_servers_ddp.py --out runs/served

The first process starts two data servers. Each process connects as one rank, for its part of every epoch.
Digits move and turn differently in each epoch. The first process writes `data_servers_ddp.svg`.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import cotswold

RECIPE = """
name = "digits"
network = {{ layers = [{{ type = "linear", features = 10 }}] }}
training = {{ strategy = "supervised" }}
[data]
source = '{images}'
labels = "file"
validation = 0.2
size = 8
colour = "grey"
whiten = false
augment = [{{ name = "translation", pixels = 1 }}, {{ name = "rotation", degrees = 10 }}]
"""


def train(address: str, token: str, epochs: int) -> list[float]:
    """Return the validation accuracy after each epoch."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.003)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    training = cotswold.connect_data(address, token, batch_size=16, rank=rank, world_size=ranks)
    validation = cotswold.connect_data(address, token, split="validation", shuffle=False)
    accuracies = []
    with training, validation:
        for epoch in range(epochs):
            training.set_epoch(epoch)
            for images, classes in training:
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(images), classes).backward()
                optimiser.step()
            with torch.no_grad():
                right = [model.module(images).argmax(1) == classes for images, classes in validation]
            accuracies.append(torch.cat(right).double().mean().item())
    return accuracies


def main(out: Path, short: bool) -> None:
    dist.init_process_group("gloo")
    place: list[str] = ["", ""]
    if dist.get_rank() == 0:
        out.mkdir(parents=True, exist_ok=True)
        pixels, classes = load_digits(return_X_y=True)
        np.savez(out / "digits.npz", x=(pixels.reshape(-1, 8, 8) * 15.9).astype(np.uint8), labels=classes)
        (out / "digits.toml").write_text(RECIPE.format(images=(out / "digits.npz").resolve()))
        served = cotswold.serve_data(out / "digits.toml", stores=out / "stores", progress=False)
        place = [served.address, served.token]
    dist.broadcast_object_list(place)
    accuracies = train(place[0], place[1], 2 if short else 15)
    dist.barrier()
    if dist.get_rank() == 0:
        served.close()
        print(f"accuracy {accuracies[-1]:.3f}")
        figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
        axes.plot(range(1, len(accuracies) + 1), accuracies, "o-")
        axes.set(xlabel="epoch", ylabel="accuracy on the validation set")
        figure.savefig(out / "data_servers_ddp.svg")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--short", action="store_true", help="small size, as in the tests")
    main(**vars(parser.parse_args()))
