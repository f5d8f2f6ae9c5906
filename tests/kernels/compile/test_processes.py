from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cotswold.kernels.compile import code_cache

ROOT = Path(__file__).parents[3]


def started(cache: Path) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "COTSWOLD_CACHE": str(cache),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.kernels.count_compilations"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(process: subprocess.Popen[str]) -> tuple[int, int, str]:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors[-2000:]
    compiled, measured, digest = out.split()
    return int(compiled), int(measured), digest


@pytest.mark.soak
def test_processes_that_start_at_once_share_a_cache_and_a_later_one_compiles_and_measures_nothing(
    tmp_path: Path,
) -> None:
    cache = tmp_path / "cache"
    first = [told(process) for process in [started(cache) for _ in range(2)]]
    assert {digest for *_, digest in first} == {first[0][2]}
    assert sum(compiled for compiled, *_ in first) > 0 and sum(measured for _, measured, _ in first) > 0
    left = sorted(one.name for one in cache.iterdir())
    assert all(name.endswith((".o", ".json")) for name in left)  # nothing half written
    assert told(started(cache)) == (0, 0, first[0][2])
    assert sorted(one.name for one in cache.iterdir()) == left


def test_kernels_of_tests_are_kept_where_the_users_own_are_not() -> None:
    place = code_cache.trusted()
    users = {Path.home() / ".cache" / "cotswold", Path.home() / "Library" / "Caches" / "cotswold"}
    assert place is not None and place.resolve() not in {one.resolve() for one in users}
    code_cache.save("kept-by-a-test.json", b"{}")
    assert (place / "kept-by-a-test.json").is_file()
    (place / "kept-by-a-test.json").unlink()
