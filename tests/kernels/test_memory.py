from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import FUZZ

ROOT = Path(__file__).parents[2]
CASES = 150


def guarded(*arguments: str, script: str = "guarded") -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    return subprocess.run(
        [sys.executable, "-m", f"tests.support.kernels.{script}", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120 + FUZZ * CASES,
    )


@pytest.mark.soak
@pytest.mark.parametrize("seed", ["first", "second"])
def test_nothing_is_touched_before_or_beyond_an_operand_or_scratch(seed: str) -> None:
    done = guarded("random", seed, str(FUZZ * CASES))
    assert done.returncode == 0 and done.stdout.endswith("alive\n"), (
        done.returncode,
        done.stdout.splitlines()[-1:],
        done.stderr[-2000:],
    )


@pytest.mark.soak
def test_a_kernel_that_is_given_one_number_too_far_dies_on_either_side() -> None:
    done = guarded("shifted")
    assert done.returncode == 0 and done.stdout == "done\n", done.stdout + done.stderr[-2000:]


@pytest.mark.slow
def test_nothing_is_touched_beyond_the_layers_of_dense_networks() -> None:
    done = guarded("fourth", str(FUZZ * CASES), script="guarded_dense")
    assert done.returncode == 0 and done.stdout.endswith("alive\n"), (
        done.returncode,
        done.stdout.splitlines()[-1:],
        done.stderr[-2000:],
    )


@pytest.mark.soak
def test_nothing_is_touched_beyond_maps_and_filters_that_are_smoothed_and_measured() -> None:
    done = guarded("third", str(FUZZ * CASES // 3), script="guarded_maps")
    assert done.returncode == 0 and done.stdout.endswith("alive\n"), (
        done.returncode,
        done.stdout.splitlines()[-1:],
        done.stderr[-2000:],
    )


@pytest.mark.slow
def test_nothing_is_touched_beyond_images_whose_pixels_are_moved() -> None:
    done = guarded("fifth", str(FUZZ * CASES), script="guarded_warp")
    assert done.returncode == 0 and done.stdout.endswith("alive\n"), (
        done.returncode,
        done.stdout.splitlines()[-1:],
        done.stderr[-2000:],
    )
