"""Whole-set optimisation on machines of Ray, by the commands. Both machines are this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from tests.ports import free_ports
from tests.support.cli.command import cotswold as command

import cotswold
from cotswold.run import read_events
from cotswold.testing import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install '.[cluster]'"),
]
TOKEN = "0123456789abcdef" * 4
READY_SECONDS = 120


@contextmanager
def running(*words: object, token: str = TOKEN) -> Iterator[subprocess.Popen[str]]:
    """Yield `cotswold WORDS`, ended at the latest with the block."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
    with subprocess.Popen(
        [sys.executable, "-m", "cotswold", *map(str, words)],
        env={**environ, "COTSWOLD_TOKEN": token, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def head() -> Iterator[str]:
    with free_ports(1) as (port,), running("worker", "--head", "--port", port, "--cores", 1) as process:
        assert process.stderr is not None
        assert f":{port}" in process.stderr.readline()  # it is said once Ray is up
        yield f"127.0.0.1:{port}"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    numbers, labels = np.random.default_rng(0), np.arange(20_000) % 5
    x = numbers.normal(size=(20_000, 60)) + np.eye(5, 60)[labels]
    np.savez(tmp_path / "x.npz", x=x.astype(np.float32), labels=labels)
    (tmp_path / "x.toml").write_text(
        f'name = "x"\ndata = {{ type = "vectors", source = "{tmp_path}/x.npz", labels = "file" }}\n'
        'network = { layers = [{ type = "linear", features = 100 }, { type = "tanh" }] }\n'
        'training = { strategy = "batch", deterministic = true, max_iterations = 1000 }\n'
    )
    return tmp_path / "x.toml"


def events(run: Path, kind: str) -> Sequence[dict[str, object]]:
    path = run / "events.jsonl"
    return [dict(event) for event in read_events(path) if event["kind"] == kind] if path.exists() else []


def helpers(run: Path) -> Sequence[set[str]]:
    """Return the workers of each finished evaluation."""
    counted = events(run, "cluster_evaluation")
    return [set(dict(each["workers"])) for each in counted]  # type: ignore[call-overload]  # as JSON has it


@pytest.mark.soak
def test_a_machine_joins_and_leaves_while_a_run_is_trained_and_no_bit_changes(
    head: str, recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = ("train", recipe, "--run", run, "--address", head, "--workers", 1, "--quiet")
    with running(*words) as training:
        wait_until(lambda: len(events(run, "step")) > 1, "the run has begun", READY_SECONDS)
        with running("worker", "--address", head, "--cores", 1) as second:
            wait_until(
                lambda: any("worker-2" in each for each in helpers(run)), "it takes part", READY_SECONDS
            )
            second.send_signal(signal.SIGTERM)
            wait_until(lambda: bool(events(run, "cluster_left")), "its worker left", READY_SECONDS)
            assert second.wait(60) == 0
        steps = len(events(run, "step"))
        wait_until(lambda: len(events(run, "step")) > steps + 1, "the run goes on", READY_SECONDS)
        training.send_signal(signal.SIGTERM)
        assert training.wait(60) == 128 + signal.SIGTERM
    counted = events(run, "cluster_evaluation")
    assert all(each["portions_lost"] == 0 and each["samples"] == counted[0]["samples"] for each in counted)
    assert {"worker-2"} < set.union(*helpers(run)) and "worker-2" not in helpers(run)[-1]
    losses = [event["loss"] for event in events(run, "step")]
    alone = cotswold.train_recipe(
        recipe, tmp_path / "alone", overrides={"training.max_iterations": len(losses)}
    )
    expected = [event["loss"] for event in alone.events if event["kind"] == "step"]
    assert losses == pytest.approx(expected, rel=1e-14)


def test_what_cannot_be_joined_is_said_before_there_is_a_run(recipe: Path, tmp_path: Path) -> None:
    for words, said in (
        (["--address", "127.0.0.1:1"], "no process answers at 127.0.0.1:1"),
        (["--address", "auto"], "no process answers at auto"),
        (["--set", "cluster.ports=70-60"], "is not a range of ports"),
    ):
        found = command("train", recipe, "--run", tmp_path / "run", *words)
        assert (found.status, found.error.count(said)) == (2, 1)
    assert not (tmp_path / "run").exists()
