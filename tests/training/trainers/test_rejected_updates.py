"""Events of a run about samples that servers refuse, all or some."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from torch import nn

from cotswold.paramserver.runtime.server_metrics import ServerMetrics
from cotswold.recipe.schema import DownpourTraining
from cotswold.shards.core.sample_ledger import SampleCounts, SampleLedger
from cotswold.training.flat_parameters import FlatParameters
from cotswold.training.trainers.async_sgd import AsyncTrainer
from cotswold.training.trainers.rejected_updates import BATCHES, RejectedUpdates, describe_rejections
from cotswold.wire.lifecycle import ServerCounters

BATCH = 16
ALL = BATCHES * BATCH


def counts(**refused: int) -> ServerCounters:
    return replace(ServerMetrics().counts("server", [], {}), refused=tuple(refused.items()))


def test_samples_that_only_some_servers_refuse_end_a_run_in_which_none_counts() -> None:
    refusals = RejectedUpdates(BATCH)
    assert refusals.consecutive_rejections(SampleCounts(counted=48)) == 0
    assert refusals.consecutive_rejections(SampleCounts(counted=48, torn=ALL - BATCH)) == 0
    assert refusals.consecutive_rejections(SampleCounts(counted=48, torn=ALL - BATCH, refused=BATCH)) == ALL
    assert refusals.consecutive_rejections(SampleCounts(counted=49, torn=ALL, refused=BATCH)) == 0


def test_a_run_that_goes_on_warns_once_of_samples_that_are_torn_since_they_are_not_finite() -> None:
    refusals = RejectedUpdates(BATCH)

    def finite() -> list[ServerCounters]:
        return [counts(), counts(finite=3)]

    assert refusals.warning(SampleCounts(counted=900, torn=ALL - 1), finite) == ""
    assert refusals.warning(SampleCounts(counted=900, torn=ALL), lambda: [counts(stale=3)]) == ""
    warned = refusals.warning(SampleCounts(counted=900, torn=ALL), finite)
    assert warned == "320 samples are torn: some servers applied them, others did not (not finite)"
    assert refusals.warning(SampleCounts(counted=900, torn=9 * ALL), finite) == ""


def test_refused_and_torn_samples_make_one_sentence() -> None:
    found = describe_rejections(SampleCounts(refused=7), [counts(stale=1)])
    assert found == "servers rejected 7 samples (too stale)"
    assert describe_rejections(SampleCounts(counted=7), [counts(finite=1)]) == ""


def test_a_run_writes_the_warning_though_no_replica_tells_a_finite_loss() -> None:
    written = list[tuple[str, object]]()
    recorder = SimpleNamespace(
        usage=SimpleNamespace(),
        remedy="try a smaller learning rate",
        event=lambda kind, **fields: written.append((kind, fields["warning"])),
    )
    training = DownpourTraining(strategy="downpour", epochs=2, batch_size=BATCH, learning_rate=0.1)
    flat = FlatParameters(nn.Linear(2, 1))
    runs = AsyncTrainer(cast(Any, None), flat, 1000, training, cast(Any, recorder), {})
    ledger = runs._ledger = SampleLedger(1000)
    ledger.accounts[0] = SampleCounts(counted=600, torn=ALL)
    runs._record_means(cast(Any, SimpleNamespace(count=lambda: (counts(finite=3),))))
    (event,) = written
    assert event[0] == "warning" and str(event[1]).endswith("(not finite); try a smaller learning rate")
