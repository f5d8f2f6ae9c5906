"""A small network of every kind of layer, as replicas learn it, and the same steps in one process.

Knows: formulas of rules, in float64. Does not know: processes, messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cotswold.nn import LocallyConnected2d
from cotswold.optim.schedule import SampleSchedule
from cotswold.optim.server_rules import Adagrad, Momentum, Rule, Sgd
from cotswold.shards.core.permutation import samples_at
from cotswold.training.async_sgd.gradients import PushFormat
from cotswold.training.async_sgd.replica_task import ReplicaTask
from cotswold.training.models import LayerNetwork, LayerPlan
from cotswold.training.strategies.base import Batch

SAMPLES, BATCH, SEED = 240, 10, 5
FACTORED = ("layers.0.weight", "layers.5.weight", "layers.7.weight")
LOCAL, CONVOLUTION = "layers.0.weight", "layers.2.weight"


class Images:
    """Random samples of three classes."""

    is_augmented = False

    def __init__(self) -> None:
        numbers = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(SAMPLES, 1, 8, 8, generator=numbers, dtype=torch.float64)
        self.targets = torch.randint(3, (SAMPLES,), generator=numbers)

    def __len__(self) -> int:
        return SAMPLES

    def batch(self, numbers: Sequence[int]) -> Batch:
        chosen = torch.as_tensor(list(numbers))
        return Batch(self.inputs[chosen], self.targets[chosen])


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets)


def work(*, way: PushFormat | None, decay: float = 0.0, clip: float | None = None) -> ReplicaTask:
    """Return the work that replicas name by module and function; all suitable layers are pushed by
    ``way``.
    """
    with torch.random.fork_rng():
        torch.manual_seed(2)
        layers = nn.Sequential(
            LocallyConnected2d(1, 2, 8, 3),
            nn.ReLU(),
            nn.Conv2d(2, 3, 3),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(48, 12),
            nn.Tanh(),
            nn.Linear(12, 3),
        ).double()
    network = LayerNetwork(layers, [LayerPlan("linear", (3,), 1, 1)], None, False)
    ways = None if way is None else dict.fromkeys((name.removesuffix(".weight") for name in FACTORED), way)
    return ReplicaTask(network, loss_of, Images(), (1, 3), ways, decay, clip)


@dataclass(frozen=True)
class Case:
    """Settings of one replica that learns alone."""

    rule: Rule = Sgd()  # noqa: RUF009  # it is frozen
    way: PushFormat | None = "gradient"
    rate: float = 0.1
    n_push: int = 1
    n_fetch: int = 1
    """Steps between pulls: 1, or enough that it never pulls again."""
    own: str = "none"
    schedule: SampleSchedule = SampleSchedule()  # noqa: RUF009  # it is frozen
    decay: float = 0.0
    clip: float | None = None
    unit_norm: tuple[str, ...] = ()


def in_one_process(case: Case, epochs: int) -> Tensor:
    """Return the parameters after training, by formulas."""
    learnt = work(way="gradient")
    names, flat = learnt.flat.names, learnt.flat
    servers, kept = flat.vector.clone(), torch.zeros_like(flat.vector)
    added, steps, first = torch.zeros_like(servers), 0, 0
    for place in range(0, epochs * SAMPLES, BATCH):
        gradient = torch.zeros_like(servers)
        learnt.compute(samples_at(SEED, SAMPLES, place, place + BATCH), gradient)
        if case.clip is not None:
            gradient *= min(1.0, case.clip / float(gradient.norm()))
        parts, weights = flat.by_name(gradient), flat.by_name(flat.vector)
        for name in names:
            if case.way == "gradient" or name not in FACTORED:
                parts[name].add_(weights[name], alpha=case.decay)
        if steps == 0:
            first = place
        steps += 1
        rate = case.schedule.rate(case.rate, place)
        added += -rate * gradient if case.own == "pushed" else gradient
        if case.own != "none":
            flat.vector.sub_(rate * gradient)
        if steps < case.n_push:
            continue
        if case.way == "factors":
            for name in FACTORED:
                flat.by_name(added)[name].add_(flat.by_name(servers)[name], alpha=case.decay * steps)
        _apply(case, servers, kept, added, case.schedule.rate(case.rate, first))
        _scale(case, flat.by_name(servers))
        if case.n_fetch == 1:
            flat.vector.copy_(servers)
        added.zero_()
        steps = 0
    return servers


def _apply(case: Case, servers: Tensor, kept: Tensor, push: Tensor, rate: float) -> None:
    match case.rule:
        case Momentum(momentum):
            servers += kept.mul_(momentum).sub_(rate * push)
        case Adagrad(epsilon):
            kept += push.square()
            servers -= rate * push / (kept.sqrt() + epsilon)
        case Sgd():
            servers -= rate * push
        case _:
            servers += push


def _scale(case: Case, weights: Mapping[str, Tensor]) -> None:
    for name in case.unit_norm:
        if name == LOCAL:
            weights[name].div_(weights[name].norm(dim=(2, 3), keepdim=True))
        else:
            rows = weights[name].flatten(1)
            rows.div_(rows.norm(dim=1, keepdim=True))
