"""Environments of launchers: observed for torchrun 2.13, Open MPI 4.1 and MPICH 4.0, documented for Slurm."""

from __future__ import annotations

import sys

import pytest

from cotswold.errors import LaunchError
from cotswold.launch import World, settings_of, threads_of, world_of
from cotswold.launch.world import derived_port, first_host

OWN = {"COTSWOLD_RANK": "1", "COTSWOLD_RANKS": "2", "COTSWOLD_MASTER": "10.0.0.1:2000"}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "abc",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "133300225",
    "OMPI_MCA_ess_base_jobid": "133300225",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
BATCH = {
    "SLURM_JOB_ID": "77",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "5",
    "SLURM_JOB_NODELIST": "node[03-04]",
    "SLURM_TASKS_PER_NODE": "3,2",
}
SRUN = {
    **BATCH,
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NODELIST": "node[03-04]",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "3,2",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}


@pytest.mark.parametrize("port", ["0", "65536", "80000"])
def test_a_number_that_is_no_port_is_refused(port: str) -> None:
    with pytest.raises(LaunchError, match="no port from 1 to 65535"):
        world_of({**OWN, "COTSWOLD_MASTER": f"10.0.0.1:{port}"})


def test_a_process_that_nobody_launched_is_alone() -> None:
    assert world_of({"PATH": "/bin"}) is None


def test_our_own_variables_tell_the_place() -> None:
    environ = {**OWN, "COTSWOLD_LOCAL_RANK": "1", "COTSWOLD_LOCAL_RANKS": "2", "COTSWOLD_LISTENER": "5"}
    assert world_of(environ) == World(1, 2, 1, 2, "10.0.0.1:2000", "cotswold", listener=5)


def test_our_own_variables_go_before_any_others() -> None:
    world = world_of({**SRUN, **OPEN_MPI, **TORCHRUN, **OWN})
    assert world is not None and world.launcher == "cotswold"


def test_ranks_started_by_hand_are_alone_on_their_hosts() -> None:
    world = world_of(OWN)
    assert world is not None and (world.local_rank, world.local_size) == (0, 1)


def test_torchrun_keeps_the_store_itself_and_numbers_its_restarts() -> None:
    assert world_of(TORCHRUN) == World(3, 4, 1, 2, "node1:29500", "torchrun", "abc.2", hosted=True)


def test_variables_of_torchrun_set_by_another_are_taken_too() -> None:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    world = world_of({name: TORCHRUN[name] for name in names})
    assert world is not None and not world.hosted and world.master == "node1:29500"


def test_a_stray_world_size_makes_no_rank() -> None:
    assert world_of({"WORLD_SIZE": "4"}) is None


def test_open_mpi_on_one_host_meets_on_the_loopback_at_a_port_of_its_job() -> None:
    world = world_of(OPEN_MPI)
    assert world == World(1, 2, 1, 2, f"127.0.0.1:{derived_port('133300225')}", "mpirun", "133300225")


def test_version_5_of_open_mpi_names_its_job_only_once() -> None:
    environ = {name: value for name, value in OPEN_MPI.items() if "MCA" not in name}
    assert world_of(environ) == world_of(OPEN_MPI)


def test_mpirun_over_several_hosts_must_be_told_the_first() -> None:
    environ = {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "4"}
    with pytest.raises(LaunchError, match="mpirun -x MASTER_ADDR=HOST"):
        world_of(environ)
    told = world_of({**environ, "MASTER_ADDR": "node7", "MASTER_PORT": "29511"})
    assert told is not None and told.master == "node7:29511"


def test_mpirun_inside_a_slurm_job_knows_the_first_host() -> None:
    world = world_of({**BATCH, **OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "4"})
    assert world is not None and world.launcher == "mpirun" and world.host == "node03"


def test_ranks_of_mpich_on_one_host_have_their_parent_in_common() -> None:
    world = world_of(MPICH, parent=500)
    assert world is not None and world == world_of(MPICH, parent=500)
    assert (world.rank, world.size, world.local_rank, world.local_size) == (1, 2, 1, 2)
    other = world_of(MPICH, parent=501)
    assert other is not None and other.port != world.port


def test_mpich_over_several_hosts_must_be_told_a_port() -> None:
    environ = {**MPICH, "PMI_SIZE": "4", "MASTER_ADDR": "node7"}
    with pytest.raises(LaunchError, match="mpirun -genv MASTER_PORT=29511"):
        world_of(environ)


def test_mpirun_that_srun_started_counts_by_its_own_numbers() -> None:
    world = world_of({**SRUN, **MPICH}, parent=1)
    assert world is not None and (world.launcher, world.rank, world.size) == ("mpirun", 1, 2)


def test_srun_tells_ranks_of_this_host_from_its_list() -> None:
    assert world_of(SRUN) == World(4, 5, 1, 2, f"node03:{derived_port('77.1.0')}", "srun", "77.1.0")


def test_srun_with_an_mpi_plugin_is_srun() -> None:
    world = world_of({**SRUN, "PMI_RANK": "4", "PMI_SIZE": "5"})
    assert world is not None and world.launcher == "srun"


def test_a_step_with_fewer_tasks_than_its_job_counts_its_own() -> None:
    environ = {**SRUN, "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_PROCID": "1"}
    world = world_of({**environ, "SLURM_LOCALID": "0"})
    assert world is not None and (world.size, world.local_size) == (2, 1)


def test_a_step_on_one_host_meets_on_the_loopback() -> None:
    environ = {**SRUN, "SLURM_STEP_TASKS_PER_NODE": "5", "SLURM_NODEID": "0", "SLURM_LOCALID": "4"}
    world = world_of(environ)
    assert world is not None and world.host == "127.0.0.1"


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": "4294967291"}, {"SLURM_STEP_ID": "4294967290"}])
def test_the_shell_of_a_batch_job_is_no_rank(step: dict[str, str]) -> None:
    assert world_of({**BATCH, **step}) is None


def test_steps_of_one_job_and_jobs_that_are_queued_again_have_names_of_their_own() -> None:
    again = {"SLURM_STEP_ID": "2"}, {"SLURM_RESTART_COUNT": "1"}
    worlds = [world_of({**SRUN, **change}) for change in ({}, *again)]
    assert len({world.job for world in worlds if world is not None}) == 3


@pytest.mark.parametrize(
    ("environ", "culprit"),
    [
        ({"COTSWOLD_RANK": "0", "COTSWOLD_MASTER": "a:1"}, "COTSWOLD_RANKS is not set"),
        ({**OWN, "COTSWOLD_MASTER": "10.0.0.1"}, "COTSWOLD_MASTER must be host:port, .*got '10.0.0.1'"),
        ({**OWN, "COTSWOLD_RANK": "one"}, "COTSWOLD_RANK must be an integer, got 'one'"),
        ({**OWN, "COTSWOLD_RANK": "2"}, "rank 2 of 2"),
        ({**TORCHRUN, "MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({name: SRUN[name] for name in SRUN if name != "SLURM_LOCALID"}, "SLURM_LOCALID is not set"),
    ],
)
def test_what_is_missing_or_wrong_is_named(environ: dict[str, str], culprit: str) -> None:
    with pytest.raises(LaunchError, match=culprit):
        world_of(environ)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("a,b", "a"),
        ("node[01-03,7]", "node01"),
        ("node[9,12]", "node9"),
        ("rack[1-2]n[04-06],x", "rack1n04"),
        ("gpu[3-4].cluster.org", "gpu3.cluster.org"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_compressed_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_a_version_6_address_is_written_in_brackets() -> None:
    world = world_of({**TORCHRUN, "MASTER_ADDR": "fd00::2"})
    assert world is not None and (world.master, world.host, world.port) == (
        "[fd00::2]:29500",
        "fd00::2",
        29500,
    )


@pytest.mark.parametrize(
    ("launcher", "environ", "threads"),
    [
        ("cotswold", {}, 4),
        ("cotswold", {"OMP_NUM_THREADS": "1"}, 1),
        ("mpirun", {"OMP_NUM_THREADS": "3,2"}, 3),
        ("mpirun", {"OMP_NUM_THREADS": ""}, 4),
        ("torchrun", {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, 4),
        ("torchrun", {"OMP_NUM_THREADS": "2", "TORCHELASTIC_RUN_ID": "x"}, 2),
        ("srun", {"SLURM_CPUS_PER_TASK": "6"}, 6),
    ],
)
def test_threads_are_the_hosts_cores_divided_unless_the_user_chose(
    launcher: str, environ: dict[str, str], threads: int
) -> None:
    assert threads_of(World(0, 4, 0, 2, "a:1", launcher), 8, environ) == threads


def test_more_ranks_than_cores_have_one_thread_each() -> None:
    assert threads_of(World(0, 4, 0, 4, "a:1", "cotswold"), 2, {}) == 1


def test_a_users_level_of_torchs_warnings_is_kept() -> None:
    world = World(0, 1, 0, 1, "127.0.0.1:1", "cotswold")
    assert settings_of(world, 2, {"TORCH_CPP_LOG_LEVEL": "INFO"})["TORCH_CPP_LOG_LEVEL"] == "INFO"
    assert settings_of(world, 2, {})["TORCH_CPP_LOG_LEVEL"] == "FATAL"


@pytest.mark.skipif(sys.platform != "linux", reason="the loopback has another name")
def test_the_interface_that_reaches_rank_0_is_a_setting_unless_the_user_chose_one() -> None:
    world = World(0, 1, 0, 1, "127.0.0.1:1", "cotswold")
    assert settings_of(world, 2, {})["GLOO_SOCKET_IFNAME"] == "lo"
    assert settings_of(world, 2, {"GLOO_SOCKET_IFNAME": "eth7"})["GLOO_SOCKET_IFNAME"] == "eth7"
