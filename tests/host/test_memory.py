"""Free memory is found wherever the system reports it."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cotswold.errors import MemoryLimitError, UserError
from cotswold.host import available_bytes, keep_freed_memory, require_memory
from cotswold.run import describe_environment
from cotswold.run.environment import parse_cpuinfo

GIB = 1 << 30
MEMINFO = f"MemTotal: {64 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable:   {40 * GIB // 1024} kB\n"


def machine(root: Path, files: dict[str, str | int]) -> int:
    for name, content in {"proc/meminfo": MEMINFO, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")
    return available_bytes(root)


def group_v2(folder: str, limit: object, used: int, cache: int = 0) -> dict[str, str | int]:
    base = f"sys/fs/cgroup/{folder}"
    return {
        f"{base}memory.max": str(limit),
        f"{base}memory.current": used,
        f"{base}memory.stat": f"anon 5\ninactive_file {cache}\nactive_file 3",
    }


def group_v1(folder: str, limit: int, used: int, cache: int = 0) -> dict[str, str | int]:
    base = f"sys/fs/cgroup/memory/{folder}"
    return {
        f"{base}memory.limit_in_bytes": limit,
        f"{base}memory.usage_in_bytes": used,
        f"{base}memory.stat": f"inactive_file 1\ntotal_inactive_file {cache}",
    }


def test_without_groups_the_machine_says_what_is_free(tmp_path: Path) -> None:
    assert machine(tmp_path, {}) == 40 * GIB


def test_a_group_of_version_2_limits_it(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/job", **group_v2("job/", 8 * GIB, 3 * GIB, GIB)}
    assert machine(tmp_path, files) == 6 * GIB


def test_a_limit_further_up_counts_as_well(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/all/job",
        **group_v2("all/job/", "max", 3 * GIB),
        **group_v2("all/", 5 * GIB, 3 * GIB),
    }
    assert machine(tmp_path, files) == 2 * GIB


def test_in_a_container_the_limit_stands_at_the_root_of_the_mount(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/docker/0123", **group_v2("", 4 * GIB, GIB)}
    assert machine(tmp_path, files) == 3 * GIB


def test_a_group_of_version_1_limits_it(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/\n3:memory:/job\n1:name=systemd:/x",
        **group_v1("job/", 8 * GIB, 3 * GIB, GIB),
        **group_v1("", 0x7FFFFFFFFFFFF000, 30 * GIB),
    }
    assert machine(tmp_path, files) == 6 * GIB


def test_a_group_that_is_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/", **group_v2("", 4 * GIB, 5 * GIB)}
    assert machine(tmp_path, files) == 0


def test_a_generous_group_does_not_make_memory(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/", **group_v2("", 400 * GIB, 0)}
    assert machine(tmp_path, files) == 40 * GIB


def test_a_machine_that_does_not_say_is_taken_as_it_was_built(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) > GIB // 4


def test_this_machine_has_some_but_not_everything() -> None:
    assert 0 < available_bytes() < 1 << 50


def test_what_fits_passes_and_what_does_not_says_the_figures() -> None:
    require_memory(1, "a byte")
    with pytest.raises(MemoryLimitError, match=r"it needs 1125899\.9 GB .* GB are free; use fewer maps"):
        require_memory(1 << 50, "it", "use fewer maps")


def test_the_environment_says_what_a_speed_depends_on() -> None:
    found = describe_environment()
    versions = found["versions"]
    assert isinstance(versions, dict)
    assert versions["torch"] and versions["python"] and versions["cotswold"]
    assert found["processor"] and found["threads"] and found["cores"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "model name\t: Fast 9000\nflags\t\t: fpu avx2 avx\n\nmodel name\t: Slow\n",
            ("Fast 9000", ["avx", "avx2", "fpu"]),
        ),
        ("processor\t: 0\nFeatures\t: fp asimd sve\nHardware\t: Board\n", ("Board", ["asimd", "fp", "sve"])),
    ],
)
def test_x86_and_arm_tell_their_processor_differently(text: str, expected: tuple[str, list[str]]) -> None:
    assert parse_cpuinfo(text) == expected


FAULTS = """
import resource, sys
import torch
import cotswold
from cotswold.nn import LocallyConnected2d

if sys.argv[1] == "keep":
    assert cotswold.keep_freed_memory()
layer = LocallyConnected2d(32, 32, 24, 5)  # filters of 41 MB; glibc keeps blocks below 32 MiB by itself
x = torch.randn(4, 32, 24, 24)


def step():
    layer.weight.grad = None
    layer(x).sum().backward()


for _ in range(10):  # the heap grows by a gradient in each of the first steps
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults * resource.getpagesize() / (layer.weight.numel() * layer.weight.element_size()))
"""


@pytest.mark.skipif("glibc" not in platform.libc_ver(), reason="only glibc has these limits")
def test_a_backward_pass_gets_no_new_pages_if_freed_memory_is_kept() -> None:
    shares = {
        mode: float(
            subprocess.run(
                [sys.executable, "-c", FAULTS, mode], capture_output=True, text=True, check=True, timeout=120
            ).stdout
        )
        for mode in ("keep", "return")
    }
    assert shares["keep"] < 0.02  # page faults of a step, in pages of the filters
    assert shares["return"] > 0.1


@pytest.mark.parametrize(
    ("limit", "refused_above", "accepted", "block", "top"),
    [
        (512 << 20, 1 << 40, True, 512 << 20, 512 << 20),
        (512 << 20, 32 << 20, False, 32 << 20, 512 << 20),  # an older glibc
        (8 << 20, 32 << 20, True, 8 << 20, 8 << 20),
        (4 << 30, 1 << 40, False, 2**31 - 1, 2**31 - 1),  # mallopt takes an int
        (512 << 20, 0, False, None, None),  # nothing is changed
    ],
)
def test_the_result_says_if_blocks_up_to_the_limit_stay(
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    refused_above: int,
    accepted: bool,
    block: int | None,
    top: int | None,
) -> None:
    options: dict[int, int] = {}

    def mallopt(option: int, value: int) -> int:
        assert 0 < value < 1 << 31
        if option == -3 and value > refused_above:  # M_MMAP_THRESHOLD
            return 0
        options[option] = value
        return 1

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=mallopt))
    assert keep_freed_memory(limit) is accepted
    assert options.get(-3) == block and options.get(-1) == top


@pytest.mark.parametrize("limit", [0, -1, 2.5, "512MB", None, True])
def test_a_limit_of_kept_memory_is_a_positive_integer(limit: object) -> None:
    with pytest.raises(UserError, match="limit_bytes is a number of bytes"):
        keep_freed_memory(limit)  # type: ignore[arg-type]  # what is tested


def test_without_glibc_nothing_is_kept_and_the_result_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert not keep_freed_memory()
