"""The page of Prometheus metrics: names, kinds, labels and texts as the servers of metrics give them.

Knows: the functions that return metrics, a status with one of everything. Does not know: single metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from docs.generator.reference.text import prose, table

from cotswold.api.servers import data_server_metrics
from cotswold.api.servers.data_server_status import ServedDataStatus, WorkTotals
from cotswold.dataservice.core.shared_epochs import StreamTotals
from cotswold.dataservice.runtime.pool import ServerLine, TrainerLine
from cotswold.run.prometheus import run_metrics
from cotswold.run.prometheus.exposition import MetricFamily


class _Row(Mapping[str, object]):
    """Fields of an event, each of which is 1, except for given ones."""

    def __init__(self, **given: object) -> None:
        self._given = given

    def __getitem__(self, name: str) -> object:
        return self._given.get(name, 1)

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


def metric_page() -> str:
    """Return the page."""
    return (
        "# Prometheus metrics\n\n"
        "`cotswold train --metrics 9100` and `cotswold serve data --metrics 9100` serve metrics at\n"
        "`http://127.0.0.1:9100/metrics`. A metric without a value is left out.\n\n"
        "## Metrics of a run\n\n"
        + _table(run_families())
        + "\n## Metrics of data servers\n\n"
        + _table(data_families())
    )


def run_families() -> list[MetricFamily]:
    """Return every metric of a run, with a value."""
    rows = [_Row(refused_updates=[("reason", 1)])]
    newest: Mapping[str, Mapping[str, object]] = {
        "step": _Row(pushed_bytes_by_layer={"layer": {"kind": 1}}),
        "validation": _Row(),
        "replicas": _Row(samples=_Row(), replicas=rows, servers=rows, evaluators=rows),
        "portions": _Row(),
    }
    return run_metrics.families(newest, {}, {"recipe": "", "strategy": ""})


def data_families() -> list[MetricFamily]:
    """Return every metric of data servers, with a value."""
    status = ServedDataStatus(
        trainers=(TrainerLine("", 0, 0.0),),
        servers=(ServerLine("", None, 0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0.0),),
        made=WorkTotals(0, 0, 0, 0.0, 0, 0),
        samples_per_second=0.0,
        ended={},
        replaced=0,
        refused={"reason": 0},
        drawn=(),
        streams=(StreamTotals("", 0, 0, 0, 0, 0, 0, 0),),
    )
    return list(data_server_metrics.families(status, "", is_attached=False))


def _table(families: Iterable[MetricFamily]) -> str:
    rows = []
    for each in families:
        labels = dict.fromkeys(name for values, _ in each.values for name in values)
        rows.append(
            [f"`{each.name}`", each.kind, ", ".join(f"`{name}`" for name in labels), prose(each.help)]
        )
    return table(["metric", "type", "labels", "meaning"], rows)
