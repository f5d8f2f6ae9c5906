"""Works whose processes take the CPU for a device: their vectors are apart from the memory of messages.

Knows: what a process that makes a work imports. Does not know: what is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from tests.support.training import reference_network as network

from cotswold.processes import worker_context as own_work
from cotswold.replicas import replica_process as replica
from cotswold.replicas.vectors import DeviceVectors
from cotswold.training.async_sgd import evaluation as judging
from cotswold.training.async_sgd import replica_task as learning_works
from cotswold.training.async_sgd.evaluation import Validation
from cotswold.training.async_sgd.gradients import PushFormat
from cotswold.training.async_sgd.replica_task import ReplicaTask


def _the_cpu(wanted: str, name: str, place: int = 0) -> torch.device:
    assert (wanted, name.partition("-")[0]) in {("cuda", "replica"), ("cuda", "evaluator")}
    return torch.device("cpu")


def pretend_by(put: Callable[[ModuleType, str, object], None]) -> None:
    """Have ``put`` change what the processes that compute use."""
    put(own_work, "select_device", _the_cpu)
    put(replica, "vectors_like", DeviceVectors)


def pretend() -> None:
    """From now on, in this process."""
    pretend_by(setattr)


def work(*, way: PushFormat | None, decay: float = 0.0, clip: float | None = None) -> ReplicaTask:
    """As `network.work`."""
    pretend()
    return network.work(way=way, decay=decay, clip=clip)


def in_replica(recipe: str, store: str, rows: str) -> ReplicaTask:
    """As `learning_works.in_replica`."""
    pretend()
    return learning_works.in_replica(recipe, store, rows)


def in_evaluator(recipe: str, store: str) -> Validation:
    """As `judging.in_evaluator`."""
    pretend()
    return judging.in_evaluator(recipe, store)
