"""What a run tells as metrics: from the newest of its events.

Knows: which fields of events are metrics, their names and units. Does not know: the format, who asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cotswold.run.prometheus.exposition import Family, Values, counter, gauge

Fields = Mapping[str, object]
_OUTCOMES = ("handed_out", "counted", "torn", "refused", "lost", "left_out")
_STATES = ("starting", "joining", "pulling", "computing", "pushing", "idle", "gone")

_EVALUATOR_STATES = ("starting", "judging", "idle")

_OF_STEPS: Sequence[tuple[str, str, str]] = (
    ("loss", "loss", "Mean loss on training samples since the event before."),
    ("accuracy", "accuracy_ratio", "Part of the training samples that were right since the event before."),
    ("pictures_per_second", "samples_per_second", "Training samples a second since the event before."),
    ("staleness", "staleness_updates", "Mean staleness of all updates, in updates of a shard."),
    ("staleness_most", "staleness_most_updates", "Greatest staleness of any update, in updates of a shard."),
    ("workers", "workers", "Workers that compute."),
)
_OF_REPLICAS: Sequence[tuple[str, str, str]] = (
    ("samples_per_second", "replica_samples_per_second", "Samples that a replica computes a second."),
    ("staleness", "replica_staleness_updates", "Mean staleness of a replica's updates."),
    ("in_hand", "replica_in_hand_samples", "Samples that a replica was handed, and that are not settled."),
    ("silent_seconds", "replica_silent_seconds", "For how long nothing was heard of a replica."),
)
_OF_SERVERS: Sequence[tuple[str, str, str]] = (
    ("waiting", "server_queue_bytes", "Bytes of updates that wait on a server."),
    ("queued", "server_queue_updates", "Updates that wait on a server."),
    ("shards", "server_shards", "Shards that a server has."),
    ("silent_seconds", "server_silent_seconds", "For how long a server has not answered."),
    ("dirty_bytes", "server_dirty_bytes", "Bytes of a server's numbers that are not on its disk."),
    ("window_seconds", "server_window_seconds", "How old the oldest change is that is not on its disk."),
    ("longest_seconds", "server_longest_window_seconds", "The longest that this was, in its process."),
    ("leads", "server_leads_buckets", "Buckets of which a server is the primary."),
    ("copies", "server_copies", "Copies of buckets that a server has."),
    ("term", "server_term", "The newest term of a server's buckets."),
    (
        "lag",
        "server_lag_changes",
        "Changes that the last copy lacks of a bucket that a server leads.",
    ),
)
_OF_EVALUATORS: Sequence[tuple[str, str, str]] = (
    ("judges", "evaluator_samples", "Samples that counted in the parameters that it judges, or judged last."),
    ("for_seconds", "evaluator_state_seconds", "For how long it has done that."),
    ("silent_seconds", "evaluator_silent_seconds", "For how long nothing was heard of it."),
)


def families(
    newest: Mapping[str, Fields], counts: Mapping[str, int], about: Mapping[str, str]
) -> list[Family]:
    """Metrics from the newest event of each kind; ``counts``: how many events of a kind there were;
    ``about``: labels of the run itself."""
    saved, ended = counts.get("checkpoint", 0), counts.get("cluster_ended", 0)
    step, replicas = newest.get("step", {}), newest.get("replicas", {})
    return [
        gauge("run_info", "What is trained.", [(about, 1.0)]),
        *_steps(step),
        *_validations(newest.get("validation", {})),
        *_replicas(replicas),
        *_servers(_rows(replicas, "servers")),
        *_evaluators(_rows(replicas, "evaluators")),
        *_evaluations(newest.get("portions", {})),
        counter("checkpoints_total", "Checkpoints that this process has saved.", [({}, saved)]),
        counter("process_ends_total", "Replicas, workers and servers that have ended.", [({}, ended)]),
    ]


def _steps(step: Fields) -> Iterator[Family]:
    for field, name, about in _OF_STEPS:
        yield gauge(name, about, _one(step, field))
    flops: Values = [({}, 1e9 * value) for _, value in _one(step, "gflops")]
    yield gauge("flops_per_second", "Floating-point operations a second since the event before.", flops)
    at, of = _one(step, "at"), _one(step, "of")
    done: Values = [({}, at[0][1] / of[0][1])] if at and of and of[0][1] else []
    yield gauge("progress_ratio", "Part of the training that is done.", done)
    yield counter("pushed_bytes_total", "Bytes that replicas have pushed, by layer and kind.", _pushed(step))
    seconds = _one(step, "training_seconds")
    yield counter("training_seconds_total", "Seconds of training, those before resumptions too.", seconds)


def _validations(found: Fields) -> Iterator[Family]:
    yield gauge("validation_loss", "Mean loss on the validation samples.", _one(found, "loss"))
    yield gauge(
        "validation_accuracy_ratio", "Part of the validation samples that are right.", _one(found, "accuracy")
    )


def _replicas(found: Fields) -> Iterator[Family]:
    rows = _rows(found, "each")
    samples = found.get("samples")
    account = samples if isinstance(samples, Mapping) else {}
    yield counter(
        "samples_total",
        "Samples by what became of them; one that is lost is handed out again.",
        [({"outcome": name}, value) for name in _OUTCOMES for _, value in _one(account, name)],
    )
    yield gauge("open_samples", "Samples that are handed out, and not settled.", _one(found, "open"))
    epoch: Values = [({}, value + 1) for _, value in _one(found, "epoch")]
    yield gauge("epoch", "The epoch that is on, counted from 1.", epoch)
    yield gauge("epochs", "Epochs that are wanted.", _one(found, "epochs"))
    yield gauge("replicas", "Replicas that have joined.", _one(found, "replicas"))
    yield counter("sent_bytes_total", "Bytes that the coordinator has sent.", _one(found, "sent_bytes"))
    yield counter(
        "received_bytes_total", "Bytes that the coordinator has received.", _one(found, "received_bytes")
    )
    yield counter(
        "replica_samples_total",
        "Samples that a replica has computed, whatever became of them.",
        _each(rows, "replica", "samples"),
    )
    yield counter(
        "replica_updates_total",
        "Updates of a replica that are applied, each shard's by itself.",
        _each(rows, "replica", "updates"),
    )
    for field, name, about in _OF_REPLICAS:
        yield gauge(name, about, _each(rows, "replica", field))
    yield gauge(
        "replica_state",
        "1 for what a replica does, 0 for what it does not.",
        [
            ({"replica": str(row.get("name")), "state": state}, float(row.get("doing") == state))
            for row in rows
            for state in _STATES
        ],
    )


def _servers(rows: Sequence[Fields]) -> Iterator[Family]:
    yield counter(
        "server_updates_total",
        "Updates that a server has applied, each shard's by itself.",
        _each(rows, "server", "updates"),
    )
    for field, name, about in _OF_SERVERS:
        yield gauge(name, about, _each(rows, "server", field))
    yield counter(
        "server_refused_updates_total",
        "Updates that a server has refused, by the first word of the reason.",
        [
            ({"server": str(row.get("name")), "reason": str(reason)}, float(count))
            for row in rows
            for reason, count in _pairs(row.get("refused"))
        ],
    )


def _evaluators(rows: Sequence[Fields]) -> Iterator[Family]:
    yield gauge(
        "evaluator_state",
        "1 for what an evaluator does, 0 for what it does not.",
        [
            ({"evaluator": str(row.get("name")), "state": state}, float(row.get("doing") == state))
            for row in rows
            for state in _EVALUATOR_STATES
        ],
    )
    for field, name, about in _OF_EVALUATORS:
        yield gauge(name, about, _each(rows, "evaluator", field))


def _evaluations(portions: Fields) -> Iterator[Family]:
    yield gauge("evaluation_portions", "Portions of the evaluation that is on.", _one(portions, "of"))
    yield gauge("evaluation_done_portions", "Portions of it that are done.", _one(portions, "portions"))


def _one(fields: Fields, name: str) -> list[tuple[Mapping[str, str], float]]:
    """A number without labels, where there is one."""
    value = fields.get(name)
    return [({}, float(value))] if isinstance(value, int | float) else []


def _each(rows: Sequence[Fields], label: str, name: str) -> list[tuple[Mapping[str, str], float]]:
    """A number of each row, labelled by its name."""
    return [({label: str(row.get("name"))}, value) for row in rows for _, value in _one(row, name)]


def _rows(fields: Fields, name: str) -> list[Fields]:
    found = fields.get(name)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, Sequence) else []


def _pushed(step: Fields) -> Values:
    layers = step.get("pushed")
    return [
        ({"layer": str(layer), "kind": str(kind)}, float(count))
        for layer, kinds in (layers.items() if isinstance(layers, Mapping) else ())
        for kind, count in (kinds.items() if isinstance(kinds, Mapping) else ())
    ]


def _pairs(found: object) -> list[tuple[object, float]]:
    rows = found if isinstance(found, list | tuple) else []
    return [(each[0], each[1]) for each in rows if isinstance(each, list | tuple) and len(each) == 2]
