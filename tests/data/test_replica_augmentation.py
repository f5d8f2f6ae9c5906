from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import numpy as np

from cotswold.data import Augmentation, Store, keys
from cotswold.shards.core.permutation import samples_at
from cotswold.shards.runtime.work import ParameterWork, samples_of
from cotswold.training.async_sgd.hogwild_replica import HogwildReplica
from cotswold.training.async_sgd.replica_task import ReplicaTask
from cotswold.training.data.indexed import StoreSamples
from cotswold.training.model_parallel.replica import ModelParallelReplica

TURN = Augmentation.of([{"name": "rotation", "degrees": 30.0}])


def work(samples: int, varies: bool) -> ParameterWork:
    found = SimpleNamespace(samples=samples, varies=varies, parameters=None, layout=())
    return cast(ParameterWork, found)


def test_the_epoch_of_a_place_reaches_works_that_vary_and_no_others() -> None:
    dealt = list(samples_at(5, 40, 2 * 40 + 3, 2 * 40 + 9))
    assert list(samples_of(work(40, varies=False), 5, 83, 89)) == dealt
    assert list(samples_of(work(40, varies=True), 5, 83, 89)) == [80 + each for each in dealt]


def test_whatever_a_replica_is_can_say_whether_it_varies() -> None:
    for kind in (ReplicaTask, HogwildReplica, ModelParallelReplica):
        assert "varies" in vars(kind)


def test_replicas_learn_from_the_variants_that_a_reader_hands_out(plain_store: Callable[..., Store]) -> None:
    store = plain_store(20)
    samples = StoreSamples(store, "train", augmentation=TURN, seed=7)
    count = len(samples)
    rows = np.array([3, 0, 11])
    plain = StoreSamples(store, "train").batch(rows.tolist())
    seen = [samples.batch((epoch * count + rows).tolist()) for epoch in range(3)]
    for epoch, batch in enumerate(seen):
        values = np.ascontiguousarray(plain.inputs.numpy())
        assert np.array_equal(batch.inputs.numpy(), TURN(values, keys(7, epoch, rows)))
        assert batch.targets is not None and plain.targets is not None
        assert batch.targets.tolist() == plain.targets.tolist()
    assert not np.array_equal(seen[0].inputs, seen[1].inputs)


def test_epochs_that_meet_in_a_batch_keep_their_variants(plain_store: Callable[..., Store]) -> None:
    store = plain_store(20)
    samples = StoreSamples(store, "train", augmentation=TURN, seed=7)
    both = samples.batch([4, len(samples) + 4]).inputs
    assert np.array_equal(both[:1], samples.batch([4]).inputs)
    assert np.array_equal(both[1:], samples.batch([len(samples) + 4]).inputs)
