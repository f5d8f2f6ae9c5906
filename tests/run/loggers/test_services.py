"""TensorBoard, Weights & Biases and MLflow without a network: what they wrote is read again."""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.wandb_file import history, records

from cotswold.run import EventLog
from cotswold.run.loggers.context import LoggerContext
from cotswold.run.loggers.registry import open_loggers

IDENTITY = "0123456789abcdef"
SETTINGS = ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME")


def png() -> bytes:
    """Return a PNG file of one red pixel."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        packed = kind + content
        return struct.pack(">I", len(content)) + packed + struct.pack(">I", zlib.crc32(packed))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(b"\x00\xff\x00\x00")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")


def context(run: Path) -> LoggerContext:
    recipe = {"name": "x", "training": {"epochs": 2.0, "schedule": "linear", "deterministic": True}}
    figures = {"filters of stack 1": png()}
    return LoggerContext(run, IDENTITY, recipe, "name = 'x'", {"torch": "2"}, lambda: figures)


def session(run: Path, logger: str, steps: range, *, first: str, status: str = "finished") -> None:
    """Write the events of a session of a run."""
    loggers = open_loggers([logger], context(run))
    with EventLog(run / "events.jsonl", observers=loggers) as log:
        log.write(first, **({"step": steps.start - 1} if first == "resumed" else {}))
        for step in steps:
            log.write("step", phase=0, step=step, loss=1 / step)
            log.write("validation", phase=0, step=step, loss=2 / step, accuracy=0.5, top2=None)
        log.write("end", status=status)
    lost = [line for line in (run / "events.jsonl").read_text().splitlines() if "observer_lost" in line]
    assert not lost, lost


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow connections to this machine alone, and use no settings of the user."""
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    connect = socket.socket.connect

    def local(self: socket.socket, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else "localhost"
        assert host in ("localhost", "127.0.0.1", "::1"), f"a connection to {host}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local)


def test_tensorboard_has_curves_text_hyperparameters_and_figures(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    session(tmp_path, "tensorboard", range(1, 4), first="start", status="interrupted")
    session(tmp_path, "tensorboard", range(2, 5), first="resumed")
    found = accumulator.EventAccumulator(str(tmp_path / "tensorboard"), {"scalars": 0, "tensors": 0}).Reload()
    points = [(point.step, point.value) for point in found.Scalars("phase 0 step/loss")]
    assert points == [(step, pytest.approx(1 / step)) for step in (1, 2, 3, 4)]
    assert found.Scalars("final/accuracy")[-1].value == 0.5
    text = found.Tensors("recipe/text_summary")[0].tensor_proto.string_val[0]
    assert text == b"    name = 'x'"
    from tensorboard.plugins.hparams import plugin_data_pb2

    stored = found.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    start = plugin_data_pb2.HParamsPluginData.FromString(stored).session_start_info.hparams
    assert start["training.epochs"].number_value == 2 and start["training.schedule"].string_value == "linear"
    assert start["training.deterministic"].bool_value is True
    (image,) = found.Images("filters of stack 1")
    assert (image.width, image.height, image.encoded_image_string) == (1, 1, png())


@pytest.fixture
def no_service() -> Iterator[None]:
    """End the process that Weights & Biases keeps."""
    pytest.importorskip("wandb")
    yield
    import wandb

    wandb.teardown()


@pytest.mark.slow
def test_weights_and_biases_keeps_a_run_offline_and_continues_it(tmp_path: Path, no_service: None) -> None:
    session(tmp_path, "wandb", range(1, 4), first="start", status="interrupted")
    session(tmp_path, "wandb", range(4, 6), first="resumed")
    folders = sorted((tmp_path / "wandb").glob("offline-run-*"), key=lambda each: each.stat().st_mtime_ns)
    assert len(folders) == 2, "each session writes a folder"
    steps: list[tuple[int, Any]] = []
    for folder in folders:
        file = folder / f"run-{IDENTITY}.wandb"
        run = next(each.run for each in records(file) if each.WhichOneof("record_type") == "run")
        assert (run.run_id, run.display_name, run.project) == (IDENTITY, tmp_path.name, "cotswold")
        config = {item.key: item.value_json for item in run.config.update}
        assert config["training.schedule"] == '"linear"'
        rows = [row for row in history(file) if "phase 0 step/loss" in row]
        steps += [(int(row["_step"]), float(row["phase 0 step/loss"])) for row in rows]
    assert steps == [(step, pytest.approx(1 / step)) for step in range(1, 6)]
    assert [len(list(folder.rglob("*.png"))) for folder in folders] == [0, 1]
    assert [*(tmp_path / "wandb").rglob("requirements.txt")] == [], "it would list the installed packages"


@pytest.mark.slow
def test_mlflow_keeps_a_run_in_files_and_continues_it(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    session(tmp_path, "mlflow", range(1, 4), first="start", status="interrupted")
    client = mlflow.MlflowClient((tmp_path / "mlflow").as_uri())
    number = client.get_experiment_by_name("cotswold").experiment_id
    (run,) = client.search_runs([number])
    assert run.info.status == "KILLED" and run.data.params["training.schedule"] == "linear"
    session(tmp_path, "mlflow", range(3, 6), first="resumed")
    (again,) = client.search_runs([number])
    assert (again.info.run_id, again.info.status) == (run.info.run_id, "FINISHED")
    points = client.get_metric_history(run.info.run_id, "phase 0 step/loss")
    assert [(point.step, point.value) for point in points] == [
        (step, pytest.approx(1 / step)) for step in range(1, 6)
    ]
    assert again.data.metrics["final/accuracy"] == 0.5
    found = [each.path for each in client.list_artifacts(run.info.run_id, "figures")]
    assert found == ["figures/filters of stack 1.png"]
