"""Solve Burgers' equation by a physics-informed network: first Adam, then L-BFGS over all points.

    python examples/burgers.py --out runs/burgers

The network learns u(x, t) from u_t + u u_x = (0.05 / pi) u_xx, u(x, 0) = -sin(pi x), u(-1, t) = u(1, t) = 0.
The exact solution (Cole and Hopf) measures its error. The program writes `burgers.svg`.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn

from cotswold.optim import LBFGS

VISCOSITY = 0.05 / np.pi


def exact(x: Tensor, t: Tensor) -> Tensor:
    """Return the solution for t > 0: two integrals over a Gaussian, by Gauss and Hermite's rule."""
    nodes, weights = (torch.tensor(each) for each in np.polynomial.hermite.hermgauss(100))
    y = x[:, None] - nodes * (4 * VISCOSITY * t[:, None]).sqrt()
    factors = weights * torch.exp(-(torch.cos(np.pi * y) - 1) / (2 * np.pi * VISCOSITY) - 100)
    return -(factors * torch.sin(np.pi * y)).sum(1) / factors.sum(1)


def main(out: Path, short: bool) -> None:
    torch.manual_seed(0)
    width, points, first, second = (8, 200, 20, 20) if short else (20, 1000, 300, 600)
    layers = [nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)]
    network = nn.Sequential(*layers, nn.Tanh(), nn.Linear(width, 1)).double()
    x = (torch.rand(points, dtype=torch.float64) * 2 - 1).requires_grad_()
    t = torch.rand(points, dtype=torch.float64).requires_grad_()
    edge = torch.rand(100, dtype=torch.float64)

    def u(x: Tensor, t: Tensor) -> Tensor:
        values: Tensor = network(torch.stack([x, 2 * t - 1], 1))[:, 0]
        return values

    def loss() -> Tensor:
        values = u(x, t)
        u_x, u_t = torch.autograd.grad(values.sum(), [x, t], create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        equation = (u_t + values * u_x - VISCOSITY * u_xx).square().mean()
        at_start = (u(2 * edge - 1, 0 * edge) + torch.sin(np.pi * (2 * edge - 1))).square().mean()
        at_edges = sum(u(each + 0 * edge, edge).square().mean() for each in (-1, 1))
        return equation + at_start + at_edges

    def closure() -> Tensor:
        network.zero_grad()
        value = loss()
        value.backward()
        return value

    curve = []
    adam = torch.optim.Adam(network.parameters(), lr=0.005)
    lbfgs = LBFGS(network.parameters(), history_size=50)
    for optimiser, steps in ((adam, first), (lbfgs, second)):
        for _ in range(steps):
            curve.append(optimiser.step(closure).item())
        print(f"{type(optimiser).__name__}: loss {curve[-1]:.1e} after {len(curve)} steps")

    grid_x, grid_t = torch.meshgrid(torch.linspace(-1, 1, 201), torch.linspace(0.01, 1, 100), indexing="ij")
    expected = exact(grid_x.flatten().double(), grid_t.flatten().double())
    with torch.no_grad():
        found = u(grid_x.flatten().double(), grid_t.flatten().double())
    print(f"relative error: {float((found - expected).norm() / expected.norm()):.1e}")

    figure, (left, right) = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained")
    shown = left.pcolormesh(grid_t, grid_x, found.view(201, 100), cmap="RdBu", rasterized=True)
    figure.colorbar(shown, label="u")
    left.set(xlabel="t", ylabel="x")
    right.semilogy(curve)
    right.axvline(first, color="grey", linestyle=":")
    right.set(xlabel="step: Adam, then L-BFGS", ylabel="loss")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "burgers.svg")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--short", action="store_true", help="small size, as in the tests")
    main(**vars(parser.parse_args()))
