"""Ranks that are killed, stopped, fail or never join, with real signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.host.test_process_info import PRINT
from tests.launch.conftest import Job
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented, not in __all__

from cotswold.errors import ANOTHER_RANK_EXIT as LEFT
from cotswold.host import Token

Start = Callable[..., Job]
NewJob = Callable[[int], Job]
HOST = socket.gethostname()
STOPPING = "; stopping (the last checkpoint is whole)\n"


def test_ranks_that_have_joined_exchange_values_and_finish(start: Start) -> None:
    job = start(3, "--steps", "5")
    assert job.codes() == [0, 0, 0]
    assert job.printed(2) == "rank 2 has finished\n"


def test_a_world_of_one_rank_joins(start: Start) -> None:
    assert start(1, "--steps", "3").codes() == [0]


# jobs of the same test run at once: what takes their time is that they wait


def test_a_killed_rank_is_named_by_all_others(start: Start) -> None:
    jobs = [start(3, "--on", str(victim), "kill") for victim in (0, 1)]
    for victim, job in enumerate(jobs):
        assert sorted(code or 0 for code in job.codes()) == [-signal.SIGKILL, LEFT, LEFT]
        for rank in {0, 1, 2} - {victim}:
            assert job.printed(rank).startswith(f"cotswold: rank {victim} on {HOST} is lost: ")
            assert job.printed(rank).endswith(STOPPING)


def test_a_rank_that_stands_still_is_named_by_all_others_and_not_left_behind(start: Start) -> None:
    jobs = [start(3, "--on", str(victim), "stop") for victim in (0, 1)]
    for victim, job in enumerate(jobs):
        assert sorted(code or 0 for code in job.codes()) == [-signal.SIGKILL, LEFT, LEFT]
        named = f"cotswold: rank {victim} on {HOST} has been silent for "
        for rank in {0, 1, 2} - {victim}:
            assert job.printed(rank).startswith(named) and job.printed(rank).endswith(STOPPING)


def test_a_rank_that_goes_on_after_it_was_given_up_ends_too(start: Start) -> None:
    # with a parent that sees to them, nobody kills the rank that stands still
    jobs = [start(2, "--on", str(victim), "stop", COTSWOLD_PARENT=str(forkserver())) for victim in (0, 1)]
    for victim, job in enumerate(jobs):
        assert job.codes(job.processes[1 - victim]) == [LEFT]
        stopped = job.processes[victim].pid
        assert stopped is not None
        os.kill(stopped, signal.SIGCONT)
    for victim, job in enumerate(jobs):
        assert job.codes(job.processes[victim]) == [1]
        assert job.printed(victim).startswith(f"cotswold: rank {victim} on {HOST} was suspended for ")


def test_a_rank_that_fails_tells_the_others_why(start: Start) -> None:
    hard, memory = "ValueError: the third step is too hard", "it ran out of memory (MemoryError)"
    cases = [("raise", 0, hard), ("raise", 1, hard), ("memory", 1, memory)]
    jobs = [start(3, "--on", str(victim), deed, "--timeout", "10") for deed, victim, _ in cases]
    for (_, victim, said), job in zip(cases, jobs, strict=True):
        assert job.codes() == [1 if rank == victim else LEFT for rank in range(3)]
        for rank in {0, 1, 2} - {victim}:
            assert job.printed(rank) == f"cotswold: rank {victim} on {HOST} failed: {said}{STOPPING}"


def test_a_rank_that_finishes_early_is_not_taken_for_dead(start: Start) -> None:
    words = ("leave", "--timeout", "0.5", "--steps", "150")
    jobs = [start(2, "--on", str(early), *words) for early in (0, 1)]
    assert [job.codes() for job in jobs] == [[0, 0], [0, 0]]


def test_a_difference_is_told_by_every_rank_at_the_start(start: Start) -> None:
    job = start(3, "--facts", "a1", "a1", "b2")
    assert job.codes() == [2, 2, 2]
    sentence = (
        f"cotswold: the ranks do not agree on recipe: rank 0 on {HOST} has a1, rank 2 on {HOST} has b2; "
    )
    assert [job.printed(rank).startswith(sentence) for rank in range(3)] == [True, True, True]


def test_a_rank_that_never_comes_is_named(new_job: NewJob) -> None:
    job = new_job(3)
    for rank in (0, 2):
        job.start(rank, ["--arrival", "2"])
    assert job.codes() == [1, 1]
    sentence = f"rank 1 of 3 did not arrive at {job.master} within 2 s"
    assert sentence in job.printed(0) and sentence in job.printed(1)


def test_ranks_do_not_wait_for_ever_for_a_store_that_nobody_keeps(new_job: NewJob) -> None:
    job = new_job(2)
    job.start(1, ["--arrival", "1"])
    assert job.codes() == [1]
    assert (
        f"rank 1 on {HOST} has waited 1 s for rank 0 at {job.master}, which cannot be reached"
        in job.printed(0)
    )


def test_one_of_two_processes_with_the_same_rank_is_refused(new_job: NewJob) -> None:
    job = new_job(3)
    job.start(0, ["--arrival", "4"])
    twins = [job.start(1, ["--arrival", "4"]) for _ in range(2)]
    job.until(lambda: any(twin.exitcode is not None for twin in twins))
    refused = next(number for number, twin in enumerate(twins) if twin.exitcode is not None)
    assert twins[refused].exitcode == 2
    assert "cotswold: rank 1 is taken: process " in job.printed(1 + refused)


def test_a_rank_of_another_number_of_ranks_ends_all(new_job: NewJob) -> None:
    job = new_job(2)
    job.start(0, [])
    job.size = 3
    job.start(2, [])
    assert job.codes() == [LEFT, 2]
    assert f"rank 2 on {HOST} was started as one of 3 ranks, rank 0 as one of 2" in job.printed(0)


def test_a_port_that_is_taken_is_named(new_job: NewJob) -> None:
    job = new_job(1)
    host, port = job.master.split(":")
    with socket.create_server((host, int(port))):
        job.start(0, [])
        assert job.codes() == [1]
    assert (
        f"rank 0 on {HOST} cannot host the ranks' store at {job.master} (the port is taken)" in job.printed(0)
    )


def test_a_rank_that_beats_but_does_nothing_while_others_wait_is_named(start: Start) -> None:
    jobs = [start(3, "--on", str(victim), "hang", "--stall", "2") for victim in (0, 1)]
    for victim, job in enumerate(jobs):
        assert job.codes() == [1 if rank == victim else LEFT for rank in range(3)]
        idle = f"rank {victim} on {HOST} is alive, but has been idle for 2 s while others wait for it"
        assert [job.printed(rank) for rank in range(3)] == [f"cotswold: {idle}{STOPPING}"] * 3


def test_what_a_stranger_says_in_the_store_is_not_believed_and_kills_nobody(new_job: NewJob) -> None:
    job = new_job(2)
    rank_0 = job.start(0, ["--arrival", "3"])
    with subprocess.Popen([sys.executable, "-c", PRINT], stdout=subprocess.PIPE, text=True) as bystander:
        assert bystander.stdout is not None
        store = Stranger(job)
        claim = {"host": "a", "process": bystander.stdout.readline().strip(), "pid": 1, "facts": {}}
        store.set("member/1", json.dumps(claim))
        store.set("beat/1", "1")
        store.set("end", json.dumps([1, "the stranger says so", True]))
        assert job.codes(rank_0) == [1]
        with pytest.raises(subprocess.TimeoutExpired):
            bystander.wait(0.5)
        bystander.kill()
    ignored, ended = job.printed(0).splitlines()  # said once
    assert "is not signed with this run's token, and is ignored" in ignored
    assert ended.startswith("cotswold: rank 1 of 2 did not arrive")


def test_ranks_that_know_each_other_finish_whatever_a_stranger_says(start: Start) -> None:
    job = start(2, "--steps", "150")
    Stranger(job).set("end", json.dumps([1, "the stranger says so", True]))
    assert job.codes() == [0, 0]
    assert "under 'end' is not signed" in job.printed(0)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the loopback has one address")
def test_rank_0_listens_at_its_own_address_alone(new_job: NewJob) -> None:
    job = new_job(2)
    job.start(0, [])
    host, port = job.master.split(":")
    job.until(lambda: listens(host, int(port)))
    assert not listens("127.0.0.2", int(port))


def test_a_rank_with_another_token_does_not_come_in(new_job: NewJob) -> None:
    job = new_job(2)
    job.start(0, ["--arrival", "3"])
    job.start(1, ["--arrival", "2"], COTSWOLD_TOKEN=Token.new().text)
    assert job.codes() == [1, 1]
    assert "under 'open' is not signed with this run's token" in job.printed(1)
    assert "give all ranks the same COTSWOLD_TOKEN" in job.printed(1)
    assert "rank 1 of 2 did not arrive" in job.printed(0)


def test_ranks_without_a_token_are_refused(start: Start) -> None:
    job = start(1, COTSWOLD_TOKEN="")
    assert job.codes() == [2]
    assert "export COTSWOLD_TOKEN=$(openssl rand -hex 32)" in job.printed(0)


def test_two_jobs_at_once_do_not_meet(start: Start) -> None:
    jobs = [start(2, "--steps", "20", "--facts", name, name) for name in ("one", "two")]
    assert [job.codes() for job in jobs] == [[0, 0], [0, 0]]


def test_ranks_end_when_the_process_that_started_them_is_gone(start: Start) -> None:
    job = start(2, "--arrival", "10", COTSWOLD_PARENT="1")
    first, second = job.codes()
    assert first == LEFT and second in (LEFT, 1)  # the second may come when the first has gone
    assert job.printed(0) == "cotswold: the command that started this rank has exited" + STOPPING


class Stranger:
    """A stranger that reaches the port of a job's store, reads the names in it, and writes any value."""

    def __init__(self, job: Job) -> None:
        host, port = job.master.split(":")
        job.until(lambda: listens(host, int(port)))
        self._store = TCPStore(host, int(port), wait_for_workers=False, timeout=timedelta(seconds=20))
        job.until(lambda: any(name.endswith("beat/1") for name in self._store.list_keys()))
        self._before = next(
            name.removesuffix("beat/1") for name in self._store.list_keys() if name.endswith("beat/1")
        )

    def set(self, name: str, value: str) -> None:
        self._store.set(self._before + name, value)


def listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True


def forkserver() -> int:
    """Return the parent of all processes of these tests."""
    from multiprocessing import forkserver as module

    pid: int = module._forkserver._forkserver_pid  # type: ignore[attr-defined]  # nothing public tells it
    return pid
