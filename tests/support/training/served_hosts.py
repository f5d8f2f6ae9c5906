"""A process that leads others and hands them samples from data servers.

Knows: works of recipes, pools. Does not know: its parent.
"""

from __future__ import annotations

import torch

from cotswold.data import Store
from cotswold.training.async_sgd.hogwild_replica import build_hogwild_replica
from cotswold.training.async_sgd.replica_task import build_replica_task


def are_handed_the_samples_of_the_store(recipe: str, store: str, rows: str, pool: str) -> None:
    count = Store(store).splits["train"]
    alone = build_replica_task(recipe, store, rows)
    with build_hogwild_replica(recipe, store, rows, pool) as host:
        alone.parameters.copy_(host.parameters)
        for epoch in range(3):
            numbers = range(epoch * count, (epoch + 1) * count)
            rounds = [numbers[start : start + 6] for start in range(0, count, 6)]
            for place, samples in enumerate(rounds):
                gradient, expected = torch.zeros_like(host.parameters), torch.zeros_like(host.parameters)
                host.expect(rounds[place : place + 4])
                found = host.compute(samples, gradient)
                value = sum(
                    alone.compute(samples[at : at + 3], expected).value for at in range(0, len(samples), 3)
                )
                torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)
                assert abs(found.value - value) <= 1e-6 * value and found.samples == len(samples)
                assert not host.is_starved
