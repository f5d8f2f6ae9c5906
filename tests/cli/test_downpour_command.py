"""`cotswold train` with replicas, controlled by a user: inspected, stopped, killed, refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.run.prometheus.test_exposition import parsed
from tests.support.cli.command import cotswold, sentences_in
from tests.support.training.runs import events
from tests.training.async_sgd.test_strategy import recipe_of

from cotswold.host.process_info import process_tree
from cotswold.run import RunDirectory

SLOW_SECONDS = 60.0


class Command:
    """`cotswold train` of a recipe with two replicas and two servers, in a separate process."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.run = folder / "run"
        self._log = (folder / "said").open("a+")
        words = ("--run", str(self.run), "--stores", str(folder / "stores"), *words)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cotswold", "train", *words], stderr=self._log, start_new_session=True
        )

    @property
    def said(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def until(self, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Return the output of `why` once a condition holds for the replicas."""
        deadline = time.monotonic() + SLOW_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.said
            if (self.run / "status.json").exists():
                found: dict[str, Any] = json.loads(cotswold("why", self.run, "--json").out)
                now = found["status"].get("latest", {}).get("replicas")
                if now is not None and holds(now):
                    return found
            time.sleep(0.1)
        raise AssertionError(f"it did not come to that: {self.said}")

    def ended(self, number: int | None = None) -> int:
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(SLOW_SECONDS)
        self._log.close()
        return code


def learning(now: dict[str, Any]) -> bool:
    return bool(
        now["samples"]["counted"]
        and all(row["samples"] for row in now["replicas"])
        and len(now["replicas"]) == 2
    )


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    recipe = recipe_of(tmp_path, "workers = 2, servers = 2", epochs=100_000, shard_kilobytes=1)
    begun: list[Command] = []

    def begin(*words: str) -> Command:
        begun.append(Command(tmp_path, *([] if "--resume" in words else [str(recipe)]), *words))
        return begun[-1]

    yield begin
    for each in begun:
        if each.process.poll() is None:
            os.killpg(each.process.pid, signal.SIGKILL)
            each.process.wait()


@pytest.mark.soak
def test_a_run_is_looked_at_stopped_and_goes_on_and_leaves_nothing_when_killed(
    command: Callable[..., Command],
) -> None:
    first = command("--metrics", "0")
    found = first.until(learning)
    now = found["status"]["latest"]["replicas"]
    assert found["state"] == "running"
    pids = [row["pid"] for row in (*now["replicas"], *now["servers"])]
    assert {row["name"] for row in now["replicas"]} == {"replica-1", "replica-2"}
    assert set(pids) < set(process_tree(first.process.pid))
    # stacks of all
    said = cotswold("why", first.run, "--stacks").out
    for name in ("main", "replica-1", "replica-2", "server-0", "server-1"):
        assert f"\n{name} (process" in said
    assert "replicas/replica_process.py" in said and "trainers/async_sgd.py" in said
    assert "most recent call first" in (first.run / "logs" / "replica-1.log").read_text()
    # metrics
    (url,) = re.findall(
        r"^metrics for Prometheus: (http://127\.0\.0\.1:\d+/metrics)$", first.said, re.MULTILINE
    )
    with urllib.request.urlopen(url, timeout=5) as answer:
        metrics = parsed(answer.read().decode())
    assert metrics["cotswold_samples_total"]["values"][("outcome", "counted"),] > 0
    assert (("replica", "replica-2"),) in metrics["cotswold_replica_samples_total"]["values"]
    # a second one in the same directory
    refused = cotswold("train", "--run", first.run, "--resume")
    assert refused.status == 1 and "two runs in one directory" in refused.error
    # a replica that is stopped is named
    os.kill(pids[0], signal.SIGSTOP)
    first.until(lambda now: any(row["silent_seconds"] > 3 for row in now["replicas"]))
    said = cotswold("why", first.run).out
    assert "replica-1 is stopped, and sent no message for" in said and f"kill -CONT {pids[0]}" in said
    os.kill(pids[0], signal.SIGCONT)
    # stopped once
    assert first.ended(signal.SIGINT) == 130
    assert not (first.run / "status.json").exists()
    run = RunDirectory.open(first.run)
    counted = events(run, "checkpoint")[-1]["step"]
    assert isinstance(counted, int) and counted > 0
    assert "was stopped and saved; --resume continues it" in cotswold("why", first.run).out
    # goes on, and is killed
    second = command("--resume")
    second.until(lambda now: learning(now) and now["samples"]["counted"] > counted)
    started = process_tree(second.process.pid)
    assert len(started) >= 6
    assert second.ended(signal.SIGKILL) == -signal.SIGKILL
    deadline = time.monotonic() + 20.0
    while any(Path(f"/proc/{each}").exists() for each in started):
        assert time.monotonic() < deadline, "processes are left"
        time.sleep(0.05)
    said = cotswold("why", first.run).out
    assert "ended without saving" in said and "before, training; epoch" in said
    assert "cotswold train --run" in said


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_leaves_at_once_and_takes_all_processes_along(
    number: signal.Signals, command: Callable[..., Command]
) -> None:
    begun = command()
    found = begun.until(learning)
    server = found["status"]["latest"]["replicas"]["servers"][0]["pid"]
    os.kill(server, signal.SIGSTOP)  # so that what is in hand is not settled
    begun.until(
        lambda now: now["samples_in_flight"] and any(row["silent_seconds"] > 1.5 for row in now["servers"])
    )
    started = process_tree(begun.process.pid)
    begun.process.send_signal(number)
    while "press again to stop at once" not in begun.said:
        time.sleep(0.05)
    time.sleep(0.4)  # the same again within a moment is an echo
    before = time.monotonic()
    assert begun.ended(number) == 128 + number
    assert time.monotonic() - before < 3.0
    deadline = time.monotonic() + 20.0
    while any(Path(f"/proc/{each}").exists() for each in started):
        assert time.monotonic() < deadline, "processes are left"
        time.sleep(0.05)


@pytest.mark.soak
def test_a_server_that_dies_is_one_sentence_that_names_it(command: Callable[..., Command]) -> None:
    begun = command()
    found = begun.until(learning)
    os.kill(found["status"]["latest"]["replicas"]["servers"][1]["pid"], signal.SIGKILL)
    before = time.monotonic()
    while begun.process.poll() is None:
        time.sleep(0.05)
    assert time.monotonic() - before < 10.0
    lines = begun.said.splitlines()
    assert begun.ended() == 1
    assert sentences_in(lines) == [lines[-1]]
    assert "server-1" in lines[-1]
    assert f"resume the run: cotswold train --run {begun.run} --resume" in lines[-1]
    assert "Traceback" not in "\n".join(lines)


def test_a_run_without_the_clusters_token_is_refused_before_it_has_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("COTSWOLD_CLUSTER_TOKEN", "COTSWOLD_CLUSTER_TOKEN_FILE"):
        monkeypatch.delenv(variable, raising=False)
    recipe = recipe_of(tmp_path, 'workers = 2, controllers = "127.0.0.1:7400"', epochs=1)
    said = cotswold("train", recipe, "--run", tmp_path / "run", "--stores", tmp_path)
    assert said.status == 2 and "COTSWOLD_CLUSTER_TOKEN" in said.error
    assert not (tmp_path / "run").exists()
