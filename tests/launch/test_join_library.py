"""`join` in a user's script: an existing process group, a module partitioned over it, deaths."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable

import pytest
import torch.distributed as dist
from tests.launch.conftest import Job
from tests.support.launch import script
from tests.warm import PYTHON
from torch.distributed import HashStore  # type: ignore[attr-defined]  # documented, not in __all__

from cotswold.errors import ANOTHER_RANK_EXIT as LEFT
from cotswold.errors import LaunchError
from cotswold.host import Token
from cotswold.launch import World, join, membership

NewJob = Callable[[int], Job]
HOST = socket.gethostname()


def run(job: Job, *words: str) -> Job:
    for rank in range(job.size):
        job.start_script(rank, words)
    return job


def test_ranks_of_a_group_that_is_there_join_twice_and_leave_group_and_environment_alone(
    new_job: NewJob,
) -> None:
    job = run(new_job(2), "--twice")
    assert job.codes() == [0, 0], job.printed(0)
    assert job.printed(1) == "rank 1 has finished\n"


def test_the_job_s_group_may_end_inside_of_the_block(new_job: NewJob) -> None:
    job = run(new_job(2), "--destroy")
    assert job.codes() == [0, 0], job.printed(0)


def test_a_script_that_exits_inside_of_the_block_fails_unless_with_success(new_job: NewJob) -> None:
    cases = [(0, 0), (3, LEFT)]
    jobs = [run(new_job(2), "--exit", str(code)) for code, _ in cases]
    for (code, others), job in zip(cases, jobs, strict=True):
        assert job.codes() == [others, code], job.printed(0)


def test_who_is_left_of_a_partitioned_module_names_the_killed_rank_and_ends(new_job: NewJob) -> None:
    words = ("--steps", "1000000", "--timeout", "2")
    jobs = [run(new_job(2), "--kill", str(victim), *words) for victim in (0, 1)]
    for victim, job in enumerate(jobs):
        codes = job.codes()
        assert codes[victim] == -signal.SIGKILL and codes[1 - victim] == LEFT
        said = [line for line in job.printed(1 - victim).splitlines() if line.startswith("cotswold: ")]
        assert len(said) == 1 and said[0].startswith(f"cotswold: rank {victim} on {HOST} is lost: ")
        assert said[0].endswith("; stopping")


def test_an_error_of_one_rank_is_told_by_the_other(new_job: NewJob) -> None:
    job = run(new_job(2), "--fail", "1", "--steps", "1000000")
    assert job.codes() == [LEFT, 1]
    sentence = f"cotswold: rank 1 on {HOST} failed: ValueError: the third step is too hard; stopping\n"
    assert job.printed(0).endswith(sentence)


def test_a_rank_that_does_not_join_is_waited_for_as_long_as_said_and_no_longer(new_job: NewJob) -> None:
    jobs = [run(new_job(2), "--absent", str(absent), "--arrival", "2") for absent in (0, 1)]
    for absent, job in enumerate(jobs):
        assert job.codes(job.processes[1 - absent]) == [1]
        late = "not all 2 ranks of the process group have joined within 2 s"
        assert late in job.printed(1 - absent)


def test_some_ranks_of_the_job_join_in_a_group_of_their_own_under_their_own_numbers(new_job: NewJob) -> None:
    job = run(new_job(3), "--part", "1", "2")
    assert job.codes() == [0, 0, 0], job.printed(1)


def test_a_killed_rank_of_a_group_is_named_by_its_number_in_the_job(new_job: NewJob) -> None:
    job = run(new_job(3), "--part", "1", "2", "--kill", "2", "--steps", "1000000", "--timeout", "2")
    assert job.codes(job.processes[1]) == [LEFT]
    assert f"cotswold: rank 2 on {HOST} has been silent for 2 s; stopping" in job.printed(1)


def test_a_world_and_a_store_may_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTSWOLD_TOKEN", raising=False)
    before = dict(os.environ)
    world = World(0, 1, 0, 1, "nowhere:1", "a test")
    with join(world, store=HashStore(), token=Token.new(), timeout_seconds=5.0) as ranks:
        assert ranks.gather("here") == ["here"] and dist.is_initialized()
        assert dict(os.environ) == before
    assert not dist.is_initialized()


def test_a_world_is_refused_where_a_group_says_who_the_ranks_are() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(LaunchError, match="leave world out"), join(World(0, 1, 0, 1, "a:1", "a test")):
            pass
    finally:
        dist.destroy_process_group()


def test_an_old_torch_that_has_one_connection_to_a_store_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "Store", object)
    with pytest.raises(LaunchError, match="use a newer torch"), join(store=HashStore(), token=Token.new()):
        pass


def test_a_process_that_nobody_launched_cannot_join(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COTSWOLD_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LaunchError, match="was started alone"), join(token=Token.new()):
        pass


@pytest.mark.slow
def test_a_script_under_torchrun_joins_without_a_token_or_an_address() -> None:
    done = under_torchrun(0.1)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 has finished", "rank 1 has finished"]


@pytest.mark.soak
def test_an_error_of_a_rank_under_torchrun_is_told_by_the_other() -> None:
    # torchrun ends the others as soon as it looks: they are to have spoken before
    done = under_torchrun(3, "--fail", "1", "--steps", "1000000")
    assert done.returncode == 1
    assert "failed: ValueError: the third step is too hard; stopping" in done.stderr


TORCHRUN = (*PYTHON, "-m", "torch.distributed.run")


def under_torchrun(looks_every: float, *words: str) -> subprocess.CompletedProcess[str]:
    how = ["--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    return subprocess.run(
        [
            *TORCHRUN,
            *how,
            f"--monitor-interval={looks_every}",
            "--no-python",
            *PYTHON,
            script.__file__,
            "--timeout",
            "20",
            *words,
        ],
        env={name: value for name, value in os.environ.items() if not name.startswith("COTSWOLD_")},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
