"""Works that processes of a host share, and processes that lead them.

Knows: sums small enough to check by hand, ways to fail. Does not know: the tests.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from tests.support.replicas.works import Regression, is_first
from torch import Tensor

from cotswold.errors import UserError
from cotswold.shards.runtime.work import PortionSum
from cotswold.training.async_sgd.hogwild_replica import HogwildReplica, start_hogwild


class Shareable(Regression):
    """A regression with parameters anywhere; one sample may be bad, or stop its process once, by a marker."""

    def __init__(
        self, samples: int = 1000, size: int = 48, seconds: float = 0.0, bad: str = "", marker: str = ""
    ) -> None:
        super().__init__(samples, size, torch.float32, seconds)
        self._bad, self._marker, self._steps = bad, marker, 0

    def bind_parameters(self, vector: Tensor) -> None:
        vector.copy_(self._parameters)
        self._parameters = vector

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        self._steps += 1
        if self._marker and self._steps > 3 and is_first(self._marker):
            if self._bad == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                threading.Event().wait(60.0)
        if 7 in samples and self._bad == "nan":
            gradient[0] += float("nan")
            return super().compute(samples, gradient)
        if 7 in samples and self._bad == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if 7 in samples and self._bad == "error":
            raise UserError("sample 7 cannot be read")
        return super().compute(samples, gradient)


class Tally(Shareable):
    """Counts: the gradient of a batch is 1 for each of its samples."""

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        gradient[torch.as_tensor(samples)] += 1
        return PortionSum(float(sum(samples)), len(samples), {"right": 1.0})


@contextmanager
def hosted(work: Shareable, processes: int, batch: int = 10, samples: int = 100) -> Iterator[HogwildReplica]:
    with start_hogwild(work, processes, batch, samples) as host:
        yield host


@contextmanager
def regression(
    *, samples: int, size: int, processes: int, seconds: float = 0.0, bad: str = "", marker: str = ""
) -> Iterator[HogwildReplica]:
    """Yield the replica's work named ``"tests.support.training.hogwild_hosts:regression"``."""
    with start_hogwild(Shareable(samples, size, seconds, bad, marker), processes, 10, 10 * processes) as host:
        yield host


def steps_of_one_process_are_plain_sgd() -> None:
    """Run and check the steps of a leader of one process."""
    plain = Shareable()
    rows = [list(range(start, start + 10)) for start in range(0, 200, 10)]
    for row in rows:
        gradient = torch.zeros(48)
        plain.compute(row, gradient)
        plain.parameters.sub_(gradient, alpha=0.05)
    with hosted(Shareable(), 1) as host:
        whole = torch.zeros(48)
        first = host.learn(range(100), whole, 0.05)
        host.learn(range(100, 200), whole, 0.05)
        assert first.samples == 100
        assert torch.equal(host.parameters, plain.parameters)
        assert torch.allclose(host.parameters, -0.05 * whole, rtol=1e-4, atol=1e-6)


def without_a_rate_all_batches_are_of_the_same_parameters() -> None:
    plain, wanted = Shareable(), torch.zeros(48)
    sums = [plain.compute(range(start, start + 10), wanted) for start in range(0, 100, 10)]
    with hosted(Shareable(), 2) as host:
        found = torch.zeros(48)
        value = host.compute(range(100), found).value
        assert abs(value - sum(each.value for each in sums)) < 1e-9 * value
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-5)
        assert not host.parameters.any()


def every_sample_is_computed_once_and_all_learn() -> None:
    with hosted(Tally(size=1000), 3, batch=7, samples=500) as host:
        for start in range(0, 1000, 500):
            counts = torch.zeros(1000)
            found = host.learn(range(start, start + 500), counts, 0.5)
            assert (found.samples, found.value, found.details) == (
                500,
                sum(range(start, start + 500)),
                {"right": 72},
            )
            assert counts.tolist() == [float(start <= each < start + 500) for each in range(1000)]
        assert host.parameters.min() < 0, "they have stepped; a step may be lost where two meet"


def a_gradient_that_is_not_finite_moves_nothing() -> None:
    with hosted(Shareable(bad="nan"), 2) as host:
        first, then = torch.zeros(48), torch.zeros(48)
        host.learn(range(100), first, 0.05)
        host.learn(range(100, 200), then, 0.05)
        assert not first.isfinite().all(), "servers are to refuse it"
        assert then.isfinite().all() and host.parameters.isfinite().all() and host.parameters.any()


def learn_until_it_ends(bad: str) -> None:
    with hosted(Shareable(bad=bad), 2) as host:
        host.learn(range(10, 100), torch.zeros(48), 0.1)
        host.learn(range(100), torch.zeros(48), 0.1)
