"""Works are built by the text ``"module:function"``; only this module compares them with their protocols."""

from __future__ import annotations

import inspect

import pytest

from cotswold.replicas.work import FactoringWork, RankedWork, ReplicaWork, SteppingWork, Steps
from cotswold.shards.runtime.work import DeviceWork, FedWork, SharedWork, VaryingWork, Work
from cotswold.training.async_sgd.hogwild_replica import HogwildReplica
from cotswold.training.async_sgd.replica_task import ReplicaTask
from cotswold.training.full_batch.objective import DenseObjective, ModuleObjective
from cotswold.training.model_parallel.full_batch_worker import ModelParallelWorker
from cotswold.training.model_parallel.replica import ModelParallelReplica, ModelParallelSteps

# a type checker compares these; at run time nothing does
BATCH_WORKS: list[type[Work]] = [ModuleObjective, DenseObjective, ModelParallelWorker]
REPLICA_WORKS: list[type[ReplicaWork]] = [ReplicaTask, HogwildReplica]
RANKED_WORKS: list[type[RankedWork]] = [ModelParallelReplica]
STEPS: list[type[Steps]] = [ModelParallelSteps]

OPTIONAL = [
    (FactoringWork, ReplicaTask),
    (SteppingWork, HogwildReplica),
    (RankedWork, ModelParallelReplica),
    *((VaryingWork, each) for each in (ModuleObjective, ReplicaTask, HogwildReplica, ModelParallelReplica)),
    *((FedWork, each) for each in (ModuleObjective, ReplicaTask, HogwildReplica, ModelParallelWorker)),
    (FedWork, ModelParallelReplica),
    (DeviceWork, ReplicaTask),
    *((SharedWork, each) for each in (HogwildReplica, ModelParallelWorker, ModelParallelReplica)),
]


@pytest.mark.parametrize(("protocol", "work"), OPTIONAL)
def test_a_work_has_the_members_of_an_optional_protocol(protocol: type, work: type) -> None:
    """Without one of the members, processes would take the work for another kind, without a word."""
    members = {name for name in vars(protocol) if not name.startswith("_")}
    assert members
    for member in members - set(dir(work)):
        assert f"self.{member}" in inspect.getsource(work), member
