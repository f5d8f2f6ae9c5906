"""Cores granted by affinity, control groups and OMP_NUM_THREADS."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotswold.host import granted_cores, wait_settings


@pytest.fixture(autouse=True)
def sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(12)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_affinity_mask_counts(tmp_path: Path) -> None:
    assert granted_cores(tmp_path) == 12


@pytest.mark.parametrize(("wish", "granted"), [("3", 3), ("4,2", 4), ("0", 12), ("many", 12), ("64", 12)])
def test_omp_num_threads_can_only_make_it_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wish: str, granted: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", wish)
    assert granted_cores(tmp_path) == granted


@pytest.mark.parametrize(("quota", "granted"), [("250000", 2), ("50000", 1), ("max", 12)])
def test_a_quota_of_a_parent_group_counts(tmp_path: Path, quota: str, granted: int) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/cpu.max": f"{quota} 100000\n",
            "sys/fs/cgroup/outer/inner/cpu.max": "max 100000\n",
        },
    )
    assert granted_cores(root) == granted


@pytest.mark.parametrize(("quota", "granted"), [("300000", 3), ("-1", 12)])
def test_quotas_of_version_1_count_where_the_container_sees_its_own_root(
    tmp_path: Path, quota: str, granted: int
) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n2:memory:/docker/abc\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": f"{quota}\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert granted_cores(root) == granted


def test_threads_that_wait_go_to_sleep_after_a_moment_unless_the_user_says_how_they_wait() -> None:
    ours = wait_settings({"OMP_NUM_THREADS": "2"})
    assert 0 < int(ours["GOMP_SPINCOUNT"]) <= 10_000 and int(ours["KMP_BLOCKTIME"]) <= 1
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        assert wait_settings({name: "anything"}) == {}
