"""`cotswold serve data`, and runs whose recipe uses it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event

import pytest
from tests.run.prometheus.test_exposition import parsed
from tests.support.cli.command import cotswold
from tests.support.training.runs import bits, finish, losses, started
from tests.support.training.served_runs import ROOT, Command, serving
from tests.support.training.small_recipes import supervised
from tests.training.data.test_data_servers import with_servers
from tests.training.full_batch.test_served_batch import LAYERS
from tests.warm import PYTHON

from cotswold.errors import MachineError, UserError
from cotswold.host.process_info import process_tree
from cotswold.run import RunDirectory, Stop, recorder
from cotswold.training import Job

pytestmark = pytest.mark.soak
TOKEN = "t" * 64
VARIED = """
[[data.augment]]
name = "rotation"
degrees = 20.0
"""
Meanwhile = Callable[[int], object]


@pytest.fixture
def recipe(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COTSWOLD_TOKEN", TOKEN)
    monkeypatch.setattr(recorder, "EVENT_SECONDS", 0.0)  # each step is an event
    path = tmp_path / "mine.toml"
    path.write_text(supervised(images) + VARIED)
    return path


@pytest.fixture
def alone(recipe: Path, stores: Path, tmp_path: Path) -> RunDirectory:
    """Return the run that reads the store itself."""
    return finish(started(recipe.read_text(), tmp_path / "alone", stores))


def served_by(command: Command, recipe: Path, run: Path, stores: Path) -> Job:
    return started(with_servers(recipe.read_text(), command.address), run, stores)


def trained(job: Job, meanwhile: Meanwhile) -> RunDirectory:
    """Return the run, with an action at each step."""

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "step":
            meanwhile(int(str(event["step"])))

    assert job.train(watch, Stop())
    return job.run


def processes(command: Command) -> list[int]:
    """Return the descendants of a command, without itself."""
    return process_tree(command.process.pid)[1:]


def gone(numbers: list[int], seconds: float = 20.0) -> bool:
    """True if all processes exit within some seconds."""
    deadline, pause = time.monotonic() + seconds, Event()
    while any(Path(f"/proc/{each}").exists() for each in numbers):
        if time.monotonic() > deadline:
            return False
        pause.wait(0.02)
    return True


def test_a_run_that_takes_from_a_pool_learns_the_same_bits_as_alone(
    recipe: Path, stores: Path, tmp_path: Path, alone: RunDirectory
) -> None:
    with serving(recipe, "--stores", stores, folder=tmp_path) as command:
        served = finish(served_by(command, recipe, tmp_path / "served", stores))
        assert bits(served)[0] == bits(alone)[0]
        assert losses(served) == losses(alone)
        started_by_it = processes(command)
        said = command.stopped()
    assert said.startswith("cotswold: ended: 0 trainers, 2 servers, ")
    assert len(started_by_it) >= 2 and gone(started_by_it)


def test_ranks_that_the_command_starts_take_from_a_pool(
    recipe: Path, stores: Path, tmp_path: Path, alone: RunDirectory
) -> None:
    with serving(recipe, "--stores", stores, "--servers", 1, folder=tmp_path) as command:
        took = f"data.servers={command.address}"
        words = ("--run", tmp_path / "ranks", "--stores", stores, "--grid", "1x2", "--set", took, "--quiet")
        assert trained_by_command(recipe, *words) == (0, "")
        assert "0 trainers, 1 server, " in command.stopped()
    assert losses(RunDirectory.open(tmp_path / "ranks")) == pytest.approx(losses(alone), rel=1e-4)


def trained_by_command(*words: object) -> tuple[int, str]:
    """Return the exit code of `cotswold train` and its standard error."""
    said = subprocess.run(
        [sys.executable, "-m", "cotswold.cli.main", "train", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    return said.returncode, said.stderr


STRATEGIES: Mapping[str, Sequence[object]] = {
    "supervised": [],
    "mesh": ["--grid", "1x2"],
    "batch": ["--set", "training.max_iterations=3"],
    "downpour": ["--workers", 2],
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_pool_that_a_run_cannot_take_from_is_told_before_there_is_a_run(
    strategy: str,
    recipe: Path,
    images: Path,
    stores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    other, own = tmp_path / "other.toml", tmp_path / "own.toml"
    other.write_text(supervised(images, data="validation = 0.4"))
    text = supervised(images, layers=LAYERS).replace("threads = 1\n", "")
    text = text if strategy == "mesh" else text.replace("supervised", strategy)
    own.write_text(text.replace("batch_size = 8\nepochs = 4\n", "") if strategy == "batch" else text)
    words = ("--run", tmp_path / "run", "--quiet", *STRATEGIES[strategy])
    fresh = tmp_path / "fresh"
    with serving(other, "--stores", stores, "--servers", 1, folder=tmp_path) as command:
        for place, address, token, code, why in (
            (fresh, "127.0.0.1:9", TOKEN, 1, "cannot be reached"),
            (fresh, command.address, "u" * 64, 2, "refused the token of this process"),
            (stores, command.address, TOKEN, 2, r"the pool serves the store \w{12}, not "),
        ):
            monkeypatch.setenv("COTSWOLD_TOKEN", token)
            found = cotswold("train", own, *words, "--stores", place, "--set", f"data.servers={address}")
            said = found.err + capfd.readouterr().err
            assert found.status == code and re.search(why, said), said
            assert not (tmp_path / "run").exists() and not fresh.exists()


def test_a_pool_of_which_a_machine_is_killed_and_another_leaves_changes_no_bit(
    recipe: Path, stores: Path, tmp_path: Path, alone: RunDirectory
) -> None:
    words = (recipe, "--stores", stores, "--servers", 1)
    with serving(*words, folder=tmp_path) as head:
        join = (*words, "--join", head.address)
        with serving(*join, folder=tmp_path) as first, serving(*join, folder=tmp_path) as second:
            for each in (head, first, second):
                each.until("data-server-.* serves")
            lent = processes(first)

            def befall(step: int) -> None:
                if step == 6:
                    first.send(signal.SIGKILL)
                if step == 12:
                    second.send(signal.SIGTERM)
                    assert second.ended() == 0

            served = trained(served_by(head, recipe, tmp_path / "served", stores), befall)
            assert bits(served)[0] == bits(alone)[0]
            assert gone(lent), "they end with whoever lends them"
            assert "leaving: trainers switch to other data servers" in second.said
            assert "Traceback" not in second.said + head.said
        assert "0 trainers, 1 server, " in head.stopped()


def test_machines_whose_samples_or_token_are_others_do_not_join(
    recipe: Path, images: Path, stores: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.toml"
    other.write_text(supervised(images, data="validation = 0.4"))
    plain = tmp_path / "plain.toml"
    plain.write_text(supervised(images))
    with serving(recipe, "--stores", stores, "--servers", 1, folder=tmp_path) as head:
        for source, token, why in (
            (other, TOKEN, r"the pool serves the store \w{12}, not \w{12}; prepare"),
            (plain, TOKEN, "the pool has other augmentation transforms than this recipe"),
            (recipe, "u" * 64, "has another token"),
        ):
            words = (source, "--stores", stores, "--join", head.address)
            with serving(*words, folder=tmp_path, token=token) as command:
                assert command.ended() == 2
                assert command.said.splitlines()[-1].startswith("cotswold: ")
                command.until(why)
        head.stopped()


def test_the_end_of_a_pool_ends_attached_servers(recipe: Path, stores: Path, tmp_path: Path) -> None:
    words = (recipe, "--stores", stores, "--servers", 1)
    with (
        serving(*words, folder=tmp_path) as head,
        serving(*words, "--join", head.address, folder=tmp_path) as lent,
    ):
        lent.until("data-server-.* serves")
        head.stopped()
        assert lent.ended() == 0
        lent.until(r"the pool at \S+ has ended")


def test_the_run_and_attached_servers_report_a_killed_head(
    recipe: Path, stores: Path, tmp_path: Path
) -> None:
    recipe.write_text(recipe.read_text().replace("epochs = 4", "epochs = 1000"))  # it outlives the head
    words = (recipe, "--stores", stores, "--servers", 1)
    with (
        serving(*words, folder=tmp_path) as head,
        serving(*words, "--join", head.address, folder=tmp_path) as lent,
    ):
        lent.until("data-server-.* serves")
        job = served_by(head, recipe, tmp_path / "run", stores)
        there = processes(head)
        killed = 0.0

        def befall(step: int) -> None:
            nonlocal killed
            if step == 6:
                head.send(signal.SIGKILL)
                killed = time.monotonic()

        with pytest.raises(MachineError, match=r"the head of the pool.* is lost.*resume the run"):
            trained(job, befall)
        assert time.monotonic() - killed < 10
        assert lent.ended(20) == 1
        lent.until("is lost .*; start again when it runs")
        assert gone(there)


def test_a_pool_whose_servers_are_all_dead_ends_with_a_sentence(
    recipe: Path, stores: Path, tmp_path: Path
) -> None:
    recipe.write_text(recipe.read_text().replace("epochs = 4", "epochs = 1000"))  # more than is sent ahead
    with serving(recipe, "--stores", tmp_path / "own", "--servers", 2, folder=tmp_path) as command:
        job = served_by(command, recipe, tmp_path / "run", stores)
        command.until("data-server-2 serves")

        def befall(step: int) -> None:
            if step != 6:
                return
            servers = processes(command)[-2:]  # before them: the fork server, the resource tracker
            assert len(servers) == 2 and min(servers) > 0
            for each in servers:
                os.kill(each, signal.SIGSTOP)
            shutil.rmtree(tmp_path / "own")  # so that no start helps
            for each in servers:
                os.kill(each, signal.SIGKILL)

        began = time.monotonic()
        with pytest.raises(MachineError, match=r"the pool of data servers has ended.*resume the run"):
            trained(job, befall)
        assert command.ended() == 1 and time.monotonic() - began < 30
    assert "every data server has exited; the last of them: data-server-" in command.said.splitlines()[-1]


def test_two_pools_serve_side_by_side_at_ports_of_their_own(
    recipe: Path, images: Path, stores: Path, tmp_path: Path, alone: RunDirectory
) -> None:
    other = tmp_path / "other.toml"
    other.write_text(supervised(images, data="validation = 0.4"))
    with (
        serving(recipe, "--stores", stores, folder=tmp_path) as one,
        serving(other, "--stores", stores, folder=tmp_path) as two,
    ):
        served = finish(served_by(one, recipe, tmp_path / "served", stores))
        assert bits(served)[0] == bits(alone)[0]
        with pytest.raises(UserError, match=r"the pool serves the store \w{12}, not "):
            served_by(two, recipe, tmp_path / "wrong", stores)
        finish(served_by(two, other, tmp_path / "other", stores))
        with serving(recipe, "--stores", stores, "--listen", one.address, folder=tmp_path) as third:
            assert third.ended() == 1
            third.until("port [0-9]+ of 127.0.0.1 is taken")
        assert {one.stopped().partition(",")[0], two.stopped().partition(",")[0]} == {
            "cotswold: ended: 0 trainers"
        }


def test_a_function_that_the_pool_was_not_started_with_is_told_before_there_is_a_run(
    recipe: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fainter.py").write_text("def half(values, keys):\n    return values / 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    own = tmp_path / "own.toml"
    own.write_text(recipe.read_text() + '\n[[data.augment]]\nname = "custom"\nfunction = "fainter:half"\n')
    with serving(recipe, "--stores", stores, folder=tmp_path) as without:
        with pytest.raises(UserError, match=r"with other transforms, .*start them with this recipe"):
            served_by(without, own, tmp_path / "run", stores)
        assert not (tmp_path / "run").exists()
    with serving(own, "--stores", stores, folder=tmp_path) as with_it:
        finish(served_by(with_it, own, tmp_path / "run", stores))


def test_a_trainer_that_is_killed_is_forgotten_and_the_next_one_served(
    recipe: Path, stores: Path, tmp_path: Path
) -> None:
    with serving(recipe, "--stores", stores, folder=tmp_path) as command:
        loop = subprocess.Popen(
            [*PYTHON, "-c", ENDLESS, command.address],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "COTSWOLD_TOKEN": TOKEN},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert loop.stdout is not None
            assert loop.stdout.readline() == "3\n"
        finally:
            loop.kill()
            loop.communicate()
        finish(served_by(command, recipe, tmp_path / "served", stores))
        assert "ended: 0 trainers, 2 servers" in command.stopped()


ENDLESS = """
import sys
import cotswold.data
number = 0
with cotswold.data.connect(sys.argv[1], stream="epochs", batch_size=8) as batches:
    while True:
        for x, y in batches:
            number += 1
            if number == 3:
                print(number, flush=True)
"""


def test_ctrl_c_twice_leaves_at_once_and_no_process_behind(
    recipe: Path, stores: Path, tmp_path: Path
) -> None:
    with serving(recipe, "--stores", stores, folder=tmp_path) as command:
        command.until("data-server-2 serves")
        there = processes(command)
        assert there
        command.send(signal.SIGSTOP)  # both are heard before anything else is done
        command.process.send_signal(signal.SIGINT)
        command.process.send_signal(signal.SIGTERM)
        command.process.send_signal(signal.SIGCONT)
        assert command.ended(10) in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        assert gone(there)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nowhere.toml"], "nowhere.toml"),
        (["."], r"\. contains no store"),
        (["RECIPE", "--cache", "much"], "'much' is not a size"),
        (["RECIPE", "--servers", "0"], "at least one"),
        (["RECIPE", "--listen", "0.0.0.0:7000"], "single address of this machine"),
        (["RECIPE", "--listen", "7000"], "HOST:PORT"),
        (
            ["RECIPE", "--listen", "127.0.0.1:0", "--join", "127.0.0.1:9"],
            "listen and join exclude each other",
        ),
        (["RECIPE", "--ports", "9"], "--ports '9' is not a range of ports"),
        (["RECIPE", "--metrics", "9:"], "metrics: '9:' is not a port"),
    ],
)
def test_what_cannot_be_served_is_said(
    words: list[str],
    why: str,
    recipe: Path,
    stores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    named = [str(recipe) if word == "RECIPE" else word for word in words]
    said = cotswold("serve", "data", *named, "--stores", stores)
    assert said.status == 2 and re.search(why, said.error), said.err


def test_the_command_says_where_metrics_are(recipe: Path, stores: Path, tmp_path: Path) -> None:
    with serving(recipe, "--stores", stores, "--metrics", "0", folder=tmp_path) as command:
        url = command.until(r"metrics for Prometheus: (http://127.0.0.1:\d+/metrics)\n")[1]
        with urllib.request.urlopen(url, timeout=5) as answer:
            assert "cotswold_data_servers" in parsed(answer.read().decode())
        command.stopped()


def test_an_address_without_a_server_is_reported_within_seconds(
    recipe: Path, stores: Path, tmp_path: Path
) -> None:
    with serving(recipe, "--stores", stores, "--join", "127.0.0.1:9", folder=tmp_path) as command:
        assert command.ended() == 1
        command.until("the pool of data servers at 127.0.0.1:9 cannot be joined: ")


def test_a_pool_needs_a_token(recipe: Path, stores: Path, tmp_path: Path) -> None:
    with serving(recipe, "--stores", stores, folder=tmp_path, token=None) as command:
        assert command.ended() == 2
        command.until("trainers need a secret: give --token-file FILE, or set COTSWOLD_TOKEN")
    with serving(recipe, "--stores", stores, "--token-file", "token", folder=tmp_path, token=None) as command:
        command.until("; the token: token\n")
        assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
        words = (recipe, "--stores", stores, "--join", command.address, "--token-file", "another")
        with serving(*words, folder=tmp_path, token=None) as lent:
            assert lent.ended() == 2
            lent.until("the token file another does not exist")
        command.stopped()
