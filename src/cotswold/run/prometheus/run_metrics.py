"""Prometheus metrics of a run, from its newest events.

Knows: which fields of events are metrics, their names and units. Does not know: the format, the clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cotswold.run.prometheus.exposition import MetricFamily, Values, counter, gauge

Fields = Mapping[str, object]
_OUTCOMES = ("handed_out", "counted", "torn", "refused", "lost", "left_out")
_ACTIVITIES = ("starting", "joining", "pulling", "computing", "pushing", "idle", "exiting")

_EVALUATOR_ACTIVITIES = ("starting", "evaluating", "idle")

_STEP_GAUGES: Sequence[tuple[str, str, str]] = (
    ("loss", "loss", "Mean loss on training samples since the previous event."),
    (
        "accuracy",
        "accuracy_ratio",
        "Fraction of training samples classified correctly since the previous event.",
    ),
    ("samples_per_second", "samples_per_second", "Training samples per second since the previous event."),
    ("staleness", "staleness_updates", "Mean staleness of all updates, in updates of a shard."),
    ("staleness_max", "staleness_max_updates", "Largest staleness of an update, in updates of a shard."),
    ("workers", "workers", "Active workers."),
)
_REPLICA_GAUGES: Sequence[tuple[str, str, str]] = (
    ("samples_per_second", "replica_samples_per_second", "Samples per second that a replica computes."),
    ("staleness", "replica_staleness_updates", "Mean staleness of a replica's updates."),
    ("samples_in_flight", "replica_in_flight_samples", "Samples assigned to a replica and not completed."),
    ("silent_seconds", "replica_silent_seconds", "Seconds since the last message of a replica."),
)
_SERVER_GAUGES: Sequence[tuple[str, str, str]] = (
    ("queued_bytes", "server_queued_bytes", "Bytes of queued updates on a server."),
    ("queued_updates", "server_queued_updates", "Queued updates on a server."),
    ("shards", "server_shards", "Shards on a server."),
    ("silent_seconds", "server_silent_seconds", "Seconds since the last message of a server."),
    ("dirty_bytes", "server_dirty_bytes", "Bytes of a server's data that are not on its disk."),
    ("dirty_seconds", "server_dirty_seconds", "Age of the oldest change that is not on its disk."),
    ("dirty_seconds_max", "server_dirty_max_seconds", "Largest such age since the start of the process."),
    ("primary_buckets", "server_primary_buckets", "Buckets of which a server is the primary."),
    ("bucket_replicas", "server_bucket_replicas", "Replicas of buckets on a server."),
    ("term", "server_term", "Newest term of a server's buckets."),
    (
        "lag_changes",
        "server_lag_changes",
        "Largest number of changes that a replica lags behind a primary on this server.",
    ),
)
_EVALUATOR_GAUGES: Sequence[tuple[str, str, str]] = (
    (
        "evaluated_samples",
        "evaluator_evaluated_samples",
        "Training samples up to the parameters of the current or last evaluation.",
    ),
    ("activity_seconds", "evaluator_activity_seconds", "Seconds in the current activity."),
    ("silent_seconds", "evaluator_silent_seconds", "Seconds since the last message of an evaluator."),
)


def families(
    newest: Mapping[str, Fields], counts: Mapping[str, int], about: Mapping[str, str]
) -> list[MetricFamily]:
    """Return the metrics of the newest event of each kind.

    ``counts``: number of events by kind; ``about``: labels of the run.
    """
    saved, exited = counts.get("checkpoint", 0), counts.get("cluster_exited", 0)
    step, replicas = newest.get("step", {}), newest.get("replicas", {})
    return [
        gauge("run_info", "Labels that describe the run.", [(about, 1.0)]),
        *_steps(step),
        *_validations(newest.get("validation", {})),
        *_replicas(replicas),
        *_servers(_rows(replicas, "servers")),
        *_evaluators(_rows(replicas, "evaluators")),
        *_evaluations(newest.get("portions", {})),
        counter("checkpoints_total", "Checkpoints that this process saved.", [({}, saved)]),
        counter("process_exits_total", "Replicas, workers and servers that exited.", [({}, exited)]),
    ]


def _steps(step: Fields) -> Iterator[MetricFamily]:
    for field, name, about in _STEP_GAUGES:
        yield gauge(name, about, _one(step, field))
    flops: Values = [({}, 1e9 * value) for _, value in _one(step, "gflops")]
    yield gauge("flops_per_second", "Floating-point operations per second since the previous event.", flops)
    at, end = _one(step, "phase_step"), _one(step, "phase_steps")
    done: Values = [({}, at[0][1] / end[0][1])] if at and end and end[0][1] else []
    yield gauge("progress_ratio", "Fraction of the training that is done.", done)
    yield counter("pushed_bytes_total", "Bytes that replicas pushed, by layer and kind.", _pushed(step))
    seconds = _one(step, "training_seconds")
    yield counter("training_seconds_total", "Seconds of training, earlier sessions included.", seconds)


def _validations(found: Fields) -> Iterator[MetricFamily]:
    yield gauge("validation_loss", "Mean loss on the validation samples.", _one(found, "loss"))
    yield gauge(
        "validation_accuracy_ratio",
        "Fraction of validation samples classified correctly.",
        _one(found, "accuracy"),
    )


def _replicas(found: Fields) -> Iterator[MetricFamily]:
    rows = _rows(found, "replicas")
    samples = found.get("samples")
    account = samples if isinstance(samples, Mapping) else {}
    yield counter(
        "samples_total",
        "Samples by outcome; a lost sample is assigned again.",
        [({"outcome": name}, value) for name in _OUTCOMES for _, value in _one(account, name)],
    )
    yield gauge("in_flight_samples", "Samples assigned and not completed.", _one(found, "samples_in_flight"))
    epoch: Values = [({}, value + 1) for _, value in _one(found, "epoch")]
    yield gauge("epoch", "Current epoch, counted from 1.", epoch)
    yield gauge("epochs", "Number of epochs of the run.", _one(found, "epochs"))
    yield gauge("replicas", "Connected replicas.", _one(found, "connected_replicas"))
    yield counter("sent_bytes_total", "Bytes that the coordinator sent.", _one(found, "sent_bytes"))
    yield counter(
        "received_bytes_total", "Bytes that the coordinator received.", _one(found, "received_bytes")
    )
    yield counter(
        "replica_samples_total",
        "Samples that a replica computed, with any outcome.",
        _each(rows, "replica", "samples"),
    )
    yield counter(
        "replica_updates_total",
        "Applied updates of a replica, counted per shard.",
        _each(rows, "replica", "updates"),
    )
    for field, name, about in _REPLICA_GAUGES:
        yield gauge(name, about, _each(rows, "replica", field))
    yield gauge(
        "replica_activity",
        "1 for the current activity of a replica, 0 for others.",
        [
            ({"replica": str(row.get("name")), "activity": each}, float(row.get("activity") == each))
            for row in rows
            for each in _ACTIVITIES
        ],
    )


def _servers(rows: Sequence[Fields]) -> Iterator[MetricFamily]:
    yield counter(
        "server_updates_total",
        "Updates that a server applied, counted per shard.",
        _each(rows, "server", "updates"),
    )
    for field, name, about in _SERVER_GAUGES:
        yield gauge(name, about, _each(rows, "server", field))
    yield counter(
        "server_refused_updates_total",
        "Updates that a server refused, by the first word of the reason.",
        [
            ({"server": str(row.get("name")), "reason": str(reason)}, float(count))
            for row in rows
            for reason, count in _pairs(row.get("refused_updates"))
        ],
    )


def _evaluators(rows: Sequence[Fields]) -> Iterator[MetricFamily]:
    yield gauge(
        "evaluator_activity",
        "1 for the current activity of an evaluator, 0 for others.",
        [
            ({"evaluator": str(row.get("name")), "activity": each}, float(row.get("activity") == each))
            for row in rows
            for each in _EVALUATOR_ACTIVITIES
        ],
    )
    for field, name, about in _EVALUATOR_GAUGES:
        yield gauge(name, about, _each(rows, "evaluator", field))


def _evaluations(portions: Fields) -> Iterator[MetricFamily]:
    yield gauge("evaluation_portions", "Portions of the current evaluation.", _one(portions, "portions"))
    yield gauge(
        "evaluation_done_portions",
        "Completed portions of the current evaluation.",
        _one(portions, "portions_done"),
    )


def _one(fields: Fields, name: str) -> list[tuple[Mapping[str, str], float]]:
    """Return a number without labels, if it exists."""
    value = fields.get(name)
    return [({}, float(value))] if isinstance(value, int | float) else []


def _each(rows: Sequence[Fields], label: str, name: str) -> list[tuple[Mapping[str, str], float]]:
    """Return a number of each row, labelled by the row's name."""
    return [({label: str(row.get("name"))}, value) for row in rows for _, value in _one(row, name)]


def _rows(fields: Fields, name: str) -> list[Fields]:
    found = fields.get(name)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, Sequence) else []


def _pushed(step: Fields) -> Values:
    layers = step.get("pushed_bytes_by_layer")
    return [
        ({"layer": str(layer), "kind": str(kind)}, float(count))
        for layer, kinds in (layers.items() if isinstance(layers, Mapping) else ())
        for kind, count in (kinds.items() if isinstance(kinds, Mapping) else ())
    ]


def _pairs(found: object) -> list[tuple[object, float]]:
    rows = found if isinstance(found, list | tuple) else []
    return [(each[0], each[1]) for each in rows if isinstance(each, list | tuple) and len(each) == 2]
