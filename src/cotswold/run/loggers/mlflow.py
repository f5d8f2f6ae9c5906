"""The logger `mlflow`: files in the folder `mlflow` of the run's directory, or a server.

Knows: the client of MLflow, how a run continues there. Does not know: the meaning of curves.

MLFLOW_TRACKING_URI names a server or another store, MLFLOW_EXPERIMENT_NAME the experiment. A resumed run
continues the same run of MLflow.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from cotswold.run.loggers.context import LoggerContext, numbers_of, results_of

FOLDER = "mlflow"
_TAG = "cotswold.run"
"""The tag with the run's identity, by which a resumed run finds its run in MLflow."""
_FIRST_KINDS = ("start", "resumed", "restarted")
_VALUE_CHARACTERS_MAX = 500
_ENDS = {"finished": "FINISHED", "failed": "FAILED"}


class MlflowLogger:
    """An observer of an EventLog that logs to MLflow.

    It opens the run there with the first event of training. Points that a resumed run repeats are left out.
    """

    name = "mlflow"

    def __init__(self, context: LoggerContext) -> None:
        self._context = context
        self._client: Any = None
        self._id = ""
        self._status = "KILLED"
        self._is_continued = False
        """True if the run had points before this session."""
        self._last: dict[str, int] = {}
        """The newest step of each curve before this session."""
        self._results: dict[str, float] = {}

    def write(self, event: Mapping[str, object]) -> None:
        """Log the numbers of an event that has a step."""
        kind, step = event["kind"], event.get("step")
        if self._client is None and (kind in _FIRST_KINDS or isinstance(step, int)):
            self._open()
        if kind == "end":
            self._end(event)
        if kind == "resumed" or not isinstance(step, int):
            return
        numbers = {name: value for name, value in numbers_of(event).items() if self._is_new(name, step)}
        self._results |= results_of(event)
        if numbers:
            self._log(numbers, event["time"], step)

    def _is_new(self, name: str, step: int) -> bool:
        if self._is_continued and name not in self._last:
            with _quiet():
                history = self._client.get_metric_history(self._id, name)
            self._last[name] = max((point.step for point in history), default=-1)
        return step > self._last.get(name, -1)

    def _log(self, numbers: Mapping[str, float], when: object, step: int) -> None:
        from mlflow.entities import Metric

        milliseconds = int(1000 * float(when)) if isinstance(when, int | float) else 0
        points = [Metric(name, float(value), milliseconds, step) for name, value in numbers.items()]
        with _quiet():
            self._client.log_batch(self._id, metrics=points)

    def _open(self) -> None:
        with _quiet():
            from mlflow import MlflowClient
            from mlflow.entities import Param

            context = self._context
            folder = context.run.absolute() / FOLDER
            client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or folder.as_uri())
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "cotswold")
            experiment = client.get_experiment_by_name(name)
            number = client.create_experiment(name) if experiment is None else experiment.experiment_id
            mine = client.search_runs([number], f"tags.`{_TAG}` = '{context.identity}'", max_results=1)
            self._is_continued = bool(mine)
            if mine:
                self._id = mine[0].info.run_id
                client.update_run(self._id, status="RUNNING")
            else:
                made = client.create_run(number, run_name=context.name, tags={_TAG: context.identity})
                self._id = made.info.run_id
                values = [
                    Param(key, str(value)[:_VALUE_CHARACTERS_MAX])
                    for key, value in context.settings.items()
                    if str(value)
                ]
                for start in range(0, len(values), 100):
                    client.log_batch(self._id, params=values[start : start + 100])
        self._client = client

    def _end(self, event: Mapping[str, object]) -> None:
        if self._client is None:
            return
        status = event.get("status")
        self._status = _ENDS.get(str(status), "KILLED")
        with _quiet(), tempfile.TemporaryDirectory() as folder:
            if self._results:
                self._log({f"final/{name}": value for name, value in self._results.items()}, event["time"], 0)
            figures = self._context.figures() if status == "finished" else {}
            for name, content in figures.items():
                path = Path(folder) / f"{name}.png"
                path.write_bytes(content)
                self._client.log_artifact(self._id, str(path), "figures")

    def close(self) -> None:
        """Set the status of the run there; it can be continued."""
        client, self._client = self._client, None
        if client is not None:
            with _quiet():
                client.set_terminated(self._id, self._status)


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out warnings of MLflow about its own stores."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def mlflow_logger(context: LoggerContext) -> MlflowLogger:
    """Return the logger of a run; the import takes seconds, in which no process of the run waits yet.

    Args:
        context: The run.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # mlflow reads it when it is imported
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # the other stores need a database
    with _quiet():
        import_module("mlflow")
    return MlflowLogger(context)
