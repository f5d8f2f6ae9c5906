"""Works whose processes treat the CPU as a device: their vectors are outside the memory of messages.

Knows: imports of a process that makes a work. Does not know: the tests.
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
    """Let ``put`` patch the modules of computing processes."""
    put(own_work, "select_device", _the_cpu)
    put(replica, "vectors_like", DeviceVectors)


def pretend() -> None:
    """Patch this process from now on."""
    pretend_by(setattr)


def work(*, way: PushFormat | None, decay: float = 0.0, clip: float | None = None) -> ReplicaTask:
    """Return `network.work` after patching."""
    pretend()
    return network.work(way=way, decay=decay, clip=clip)


def build_replica_task(recipe: str, store: str, rows: str) -> ReplicaTask:
    """Return `replica_task.build_replica_task` after patching."""
    pretend()
    return learning_works.build_replica_task(recipe, store, rows)


def build_evaluation(recipe: str, store: str) -> Validation:
    """Return `evaluation.build_evaluation` after patching."""
    pretend()
    return judging.build_evaluation(recipe, store)
