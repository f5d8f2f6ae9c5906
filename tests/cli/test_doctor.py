"""`cotswold doctor`: what the machine has, what is used, what is missing, and the command that gets it."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from tests.support.cli.command import cotswold

from cotswold.cli.doctor import choices, finding, hardware, lines, software, system
from cotswold.cli.doctor.finding import NOTE, OK, PROBLEM, Finding
from cotswold.errors import install
from cotswold.host import available_bytes, granted_cores
from cotswold.kernels.available import VARIABLE


def test_the_command_names_every_part_of_the_machine_in_eighty_columns() -> None:
    said = cotswold("doctor")
    assert said.status == 0 and said.err == ""
    rows = said.out.splitlines()
    names = ["processor", "instruction sets", "cores", "memory", "GPU", "open files", "controllers' port"]
    names += [
        "Ray's port",
        "clock",
        "etcd",
        "Ray",
        "launchers",
        "kernels",
        "threads",
        "messages",
        "processes",
    ]
    for name in names:
        assert any(row[11:].startswith(f"{name} ") for row in rows), name
    assert max(len(row) for row in rows if "->" not in row) <= 80
    assert rows[-1].startswith("0 problems and ")


def test_json_has_the_same_findings() -> None:
    told = json.loads(cotswold("doctor", "--json").out)
    assert told["schema"] == "cotswold.doctor/1" and told["is_fine"] is True
    found = {each["name"]: each for each in told["findings"]}
    assert set(found["memory"]) == {"topic", "name", "value", "status", "remedy"}
    assert str(granted_cores(environ={})) in found["cores"]["value"]
    assert found["threads"]["value"].startswith(f"{granted_cores()} in each process")


def test_a_problem_has_its_remedy_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotswold.run.environment.available_bytes", lambda: 100_000_000)
    said = cotswold("doctor")
    assert said.status == 1 and "problem  memory" in said.out and "docker run --memory" in said.out
    assert said.out.splitlines()[-1].startswith("1 problem and ")
    quiet = cotswold("doctor", "-q")
    assert quiet.status == 1 and "problem  memory" in quiet.out and " ok " not in quiet.out
    assert json.loads(cotswold("doctor", "--json").out)["is_fine"] is False
    assert available_bytes() > 100_000_000


def test_kernels_that_cannot_run_are_a_problem_and_kernels_that_are_off_are_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {each.status for each in choices.kernels()} == {OK}
    monkeypatch.setenv(VARIABLE, "torch")
    (found,) = choices.kernels()
    assert (found.status, found.remedy) == (NOTE, f"unset {VARIABLE}")
    monkeypatch.setenv(VARIABLE, "fast")
    (found,) = choices.kernels()
    assert found.status == PROBLEM and "got 'fast'" in found.value
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr("cotswold.kernels.available.compile_error", lambda: "llvmlite cannot be loaded (no)")
    (found,) = choices.kernels()
    assert found.status == PROBLEM and "because llvmlite cannot be loaded" in found.value
    assert "llvmlite" in found.remedy


def test_ranks_without_shared_memory_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choices.transport().status == OK
    monkeypatch.setenv("COTSWOLD_SHARED_MEMORY", "0")
    assert choices.transport().remedy == "unset COTSWOLD_SHARED_MEMORY"
    monkeypatch.delenv("COTSWOLD_SHARED_MEMORY")
    monkeypatch.setattr("cotswold.mesh.transport.connect.is_supported", lambda: False)
    assert choices.transport().status == NOTE and "memfd" in choices.transport().value


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        (["avx2", "fma", "f16c", "sse"], "AVX2, F16C"),
        (["asimd", "bf16", "sve"], "NEON, SVE, BF16 of ARM"),
        (["avx512f", "avx512vl"], "none that the system lists"),
    ],
)
def test_instruction_sets_follow_from_the_flags_of_the_processor(flags: Sequence[str], value: str) -> None:
    assert hardware.instruction_sets(flags).value == value
    assert not list(hardware.amx(flags))


def test_cores_that_are_not_granted_and_devices_that_pytorch_does_not_see_are_notes() -> None:
    assert hardware.cores(4, 4).status == OK
    assert hardware.cores(4, 1).status == NOTE and "1 of 4 granted" in hardware.cores(4, 1).value
    assert hardware.cuda([], driver=False).status == OK
    assert "--torch-backend" in hardware.cuda([], driver=True).remedy


def test_a_small_file_system_for_shared_memory_is_a_note(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Small:
        f_frsize, f_blocks, f_bavail = 4096, 16384, 16384

    monkeypatch.setattr(os, "statvfs", lambda folder: Small)
    (found,) = system.shared_memory(tmp_path)
    assert found.status == NOTE and "67.1 MB free" in found.value and "--shm-size" in found.remedy
    monkeypatch.undo()
    assert not list(system.shared_memory(tmp_path / "none"))


def test_limits_of_open_files_say_how_many_processes_they_allow() -> None:
    statuses = [system.open_files(most).status for most in (64, 1024, 65536)]
    assert statuses == [PROBLEM, NOTE, OK]
    assert "connect to 167 processes" in system.open_files(1024).value


def test_a_port_that_another_process_has_is_a_note() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        found = system.port("Ray's port", number, "cotswold worker --head")
        assert found.status == NOTE and "--port PORT" in found.remedy
    assert system.port("Ray's port", number, "cotswold worker --head").status == OK


def test_the_clock_is_read_and_its_states_are_told() -> None:
    error = system.clock_error()
    assert error is None or error >= 0
    assert system.clock(None).status == system.clock(0.02).status == OK
    assert "to at most 0.020 s" in system.clock(0.02).value
    assert system.clock(float("inf")).status == NOTE


def test_an_old_etcd_is_a_note(tmp_path: Path) -> None:
    program = tmp_path / "etcd"
    for version, status in (("3.3.25", NOTE), ("3.4.23", OK), ("4.0.1", OK), ("none", NOTE)):
        program.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\n")
        program.chmod(0o700)
        assert software.etcd(str(program)).status == status
    assert software.etcd(None).remedy == finding.install_program("etcd")


def test_programs_are_installed_by_the_package_manager_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for manager, command in (
        ("apt-get", "sudo apt-get install etcd-server"),
        ("dnf", "sudo dnf install etcd"),
        ("brew", "brew install etcd"),
    ):
        monkeypatch.setattr(shutil, "which", lambda name, manager=manager: name == manager)
        assert finding.install_program("etcd") == command
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert finding.install_program("mpirun").startswith("install mpirun by the package manager")


def test_a_missing_ray_and_missing_extras_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert software.ray().status == OK
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert software.ray().remedy == install("cluster")
    asked = ["numpy>=2", "pandas>=2.2; extra == 'tables'", "pyarrow; extra == 'tables'"]
    asked += ["jax; extra == 'bench'", 'datasets>=3; extra == "hub"']
    first, second = software.extras(asked, lambda name: name not in ("pyarrow", "jax"))
    assert first.value == "installed: hub"
    assert (second.name, second.status, second.remedy) == ("extra tables", NOTE, install("tables"))


def test_extras_of_a_source_that_is_not_installed_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(software, "requires", none)
    found = list(software.software())[-1]
    assert (found.name, found.status) == ("extras", NOTE) and found.remedy.startswith("pip install .")


def test_values_from_the_system_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in "".join(lines([Finding("topic", "name", "a\x1b[31mb", NOTE, "command")]))
