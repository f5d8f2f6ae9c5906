"""Run L-BFGS over all samples in DistributedDataParallel: every process takes the same steps.

    torchrun --standalone --nproc-per-node 2 examples/lbfgs_ddp.py --out runs/lbfgs

Each process has its part of the samples. A line search compares losses that are averaged over all processes,
so they agree on each step. Adam on the same network is the comparison. The first one writes `lbfgs_ddp.svg`.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cotswold.optim import LBFGS

Step = Callable[[Callable[[], Tensor]], Tensor]


def main(out: Path, short: bool) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pixels, numbers = load_digits(return_X_y=True)
    inputs = (torch.tensor(pixels).float() / 16)[rank::ranks][: 1797 // ranks]
    classes = torch.tensor(numbers)[rank::ranks][: 1797 // ranks]

    def network() -> DistributedDataParallel:
        torch.manual_seed(0)
        return DistributedDataParallel(nn.Sequential(nn.Linear(64, 30), nn.Tanh(), nn.Linear(30, 10)))

    def curve(module: nn.Module, step: Step, passes: int) -> list[tuple[int, float]]:
        """Return the loss over all samples and the number of passes so far, for each step."""
        found, done = [], 0

        def closure() -> Tensor:
            nonlocal done
            done += 1
            module.zero_grad()
            loss = nn.functional.cross_entropy(module(inputs), classes)
            loss.backward()
            return loss

        while done < passes:
            loss = step(closure).detach().clone()
            dist.all_reduce(loss)
            found.append((done, float(loss) / ranks))
        return found

    passes = 20 if short else 200
    first, second = network(), network()
    curves = {
        "L-BFGS": curve(first, LBFGS(first.parameters()).step, passes),
        "Adam": curve(second, torch.optim.Adam(second.parameters(), lr=0.02).step, passes),
    }
    vector = nn.utils.parameters_to_vector(first.parameters()).detach()
    vectors = [torch.empty_like(vector) for _ in range(ranks)]
    dist.all_gather(vectors, vector)
    if rank == 0:
        are_equal = all(torch.equal(vector, each) for each in vectors)
        print(f"the parameters of {ranks} processes are equal: {are_equal}")
        figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
        for name, points in curves.items():
            print(f"{name}: loss {points[-1][1]:.1e} after {points[-1][0]} passes over the samples")
            axes.semilogy(*zip(*points, strict=True), label=name)
        axes.set(xlabel="passes over all samples", ylabel="loss")
        axes.legend()
        out.mkdir(parents=True, exist_ok=True)
        figure.savefig(out / "lbfgs_ddp.svg")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--short", action="store_true", help="small size, as in the tests")
    main(**vars(parser.parse_args()))
