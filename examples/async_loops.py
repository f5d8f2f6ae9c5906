"""Train asynchronously by four loops of your own; one is killed, and the others continue.

    python examples/async_loops.py --out runs/loops

Two parameter servers hold the network. Each loop is a process that pulls the newest parameters and pushes its
gradients. SIGKILL ends one loop in the middle of its work. The program writes `async_loops.svg`.
"""

import os
import subprocess
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import cotswold

LOOPS, BATCH = 4, 32


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 30), nn.GroupNorm(3, 30), nn.ReLU(), nn.Linear(30, 10))


def loop(address: str, curve: Path, steps: int) -> None:
    """Push gradients; write the time and the loss of each step."""
    torch.manual_seed(os.getpid())  # each loop draws its own samples
    pixels, numbers = load_digits(return_X_y=True)
    inputs, classes = torch.tensor(pixels).float() / 16, torch.tensor(numbers)
    module = network()
    with cotswold.connect(address) as servers, curve.open("w") as file:
        for _ in range(steps):
            servers.pull(module)
            rows = torch.randint(len(inputs), (BATCH,))
            module.zero_grad()
            loss = nn.functional.cross_entropy(module(inputs[rows]), classes[rows])
            loss.backward()
            servers.push(module, samples=BATCH)
            print(time.time(), loss.item(), file=file, flush=True)


def lines(path: Path) -> list[list[float]]:
    return [[*map(float, line.split())] for line in path.read_text().splitlines()] if path.exists() else []


def main(out: Path, short: bool) -> None:
    out.mkdir(parents=True, exist_ok=True)
    steps = 30 if short else 300
    curves = [out / f"loop-{number}.txt" for number in range(LOOPS)]
    for each in curves:
        each.unlink(missing_ok=True)  # of an earlier start
    with cotswold.serve(network(), servers=2, update_rule="adagrad", learning_rate=0.05) as served:
        environment = {**os.environ, "COTSWOLD_TOKEN": served.token, "OMP_NUM_THREADS": "1"}
        start = [sys.executable, __file__, "--loop", served.address]
        loops = [subprocess.Popen([*start, str(each), str(steps)], env=environment) for each in curves]
        while loops[1].poll() is None and len(lines(curves[1])) < steps // 3:
            time.sleep(0.01)
        loops[1].kill()
        print("exit codes of the loops:", [each.wait() for each in loops])
        print("pushes that the servers counted:", served.status.pushes)

    found = [lines(each) for each in curves]
    print("steps that the loops wrote:", [len(each) for each in found])
    begun = min(points[0][0] for points in found)
    figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    for number, points in enumerate(found):
        name = f"loop {number}" + (", killed" if number == 1 else "")
        axes.plot([each[0] - begun for each in points], [each[1] for each in points], lw=0.7, label=name)
    axes.axvline(found[1][-1][0] - begun, color="black", linestyle=":")
    axes.set(xlabel="seconds", ylabel="loss of each batch", yscale="log")
    axes.legend()
    figure.savefig(out / "async_loops.svg")


if __name__ == "__main__":
    if "--loop" in sys.argv:
        loop(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
        parser.add_argument("--out", type=Path, required=True, help="folder of the results")
        parser.add_argument("--short", action="store_true", help="small size, as in the tests")
        main(**vars(parser.parse_args()))
