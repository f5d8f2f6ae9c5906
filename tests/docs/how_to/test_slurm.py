"""docs/how-to/slurm-and-spot.md: its job scripts train and are queued again, its service is that of a worker.

Slurm is not available. A program in the place of `srun` sets the variables of a step and starts its tasks.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_help_texts import parses
from tests.support.training.small_recipes import draw, greedy

import cotswold

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "slurm-and-spot.md"
TEXT = PAGE.read_text(encoding="utf-8")
ONE_NODE, SEVERAL_NODES, WORKERS = re.findall(r"```bash\n(.*?)```", TEXT, flags=re.DOTALL)
SRUN = """#!{python}
import os, subprocess, sys
words = [each for each in sys.argv[1:] if not each.startswith("--cpus-per-task")]
count = int(os.environ["TASKS"])
step = {{"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(count), "SLURM_STEP_TASKS_PER_NODE": str(count),
        "SLURM_STEP_NODELIST": "localhost", "SLURM_NODEID": "0"}}
each = [{{"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}} for rank in range(count)]
tasks = [subprocess.Popen(words, env={{**os.environ, **step, **own}}) for own in each]
codes = [each.wait() for each in tasks]
sys.exit(max(128 - code if code < 0 else code for code in codes))
"""


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def submit(script: str, folder: Path, cotswold: str, *, tasks: int, restarts: int = 0) -> tuple[int, str]:
    """Run a job script; return its exit code, and what it asked of `scontrol`.

    ``cotswold`` is the text of the command; `srun` starts it ``tasks`` times.
    """
    commands = folder / "commands"
    commands.mkdir()
    program(commands, "srun", SRUN.format(python=sys.executable))
    program(commands, "cotswold", cotswold)
    program(commands, "scontrol", f'#!/bin/sh\necho "$@" > {shlex.quote(str(folder / "asked"))}\n')
    environ = {
        name: text for name, text in os.environ.items() if not name.startswith(("COTSWOLD_", "SLURM_"))
    }
    environ |= {"PATH": f"{commands}:{os.environ['PATH']}", "TASKS": str(tasks), "SLURM_JOB_ID": "77"}
    environ |= {"SLURM_CPUS_PER_TASK": "1", "SLURM_RESTART_COUNT": str(restarts)}
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=environ, timeout=200, check=False)
    asked = folder / "asked"
    return done.returncode, asked.read_text() if asked.exists() else ""


def real_command() -> str:
    paths = os.pathsep.join(str(Path(each).absolute()) for each in sys.path if each)
    words = shlex.join([sys.executable, "-m", "cotswold.cli.main"])
    return f'#!/bin/sh\nPYTHONPATH={shlex.quote(paths)} exec {words} "$@"\n'


@pytest.mark.parametrize("script", [ONE_NODE, SEVERAL_NODES])
@pytest.mark.parametrize(
    ("code", "restarts", "is_requeued"),
    [(0, 0, False), (2, 0, False), (1, 0, True), (75, 3, True), (143, 19, True), (143, 20, False)],
)
def test_a_job_is_queued_again_unless_it_finished_or_has_a_mistake(
    script: str, code: int, restarts: int, is_requeued: bool, tmp_path: Path
) -> None:
    found = submit(script, tmp_path, f"#!/bin/sh\nexit {code}\n", tasks=1, restarts=restarts)
    assert found == (code, "requeue 77\n" if is_requeued else "")


@pytest.mark.soak
@pytest.mark.parametrize(("script", "tasks"), [(ONE_NODE, 1), (SEVERAL_NODES, 2)])
def test_tasks_of_a_step_train_on_a_grid(script: str, tasks: int, tmp_path: Path) -> None:
    draw(tmp_path / "photographs", 24, level=True)
    (tmp_path / "mine.toml").write_text(greedy(tmp_path / "photographs"))
    smaller = script.replace("--grid 2x2", "--grid 1x2").replace("/shared/", f"{tmp_path}/")
    assert submit(smaller, tmp_path, real_command(), tasks=tasks) == (0, "")
    run = cotswold.Run(tmp_path / "runs" / "mine")
    assert run.status == "finished" and run.recipe.mesh.grid == "1x2"
    assert (tmp_path / "runs" / "mine" / "logs" / "rank-1.log").exists() is (tasks == 1)


@pytest.mark.parametrize("script", [ONE_NODE, SEVERAL_NODES, WORKERS])
def test_scripts_stop_by_sigterm_and_their_commands_exist(script: str) -> None:
    assert re.search(r"^#SBATCH --signal=TERM@\d+$", script, re.MULTILINE)
    assert "#SBATCH --requeue" in script
    (line,) = re.findall(r"cotswold (?:train|worker) .*", script)
    parses(line)


def test_the_service_runs_a_worker_and_waits_for_its_handover() -> None:
    (text,) = re.findall(r"```ini\n(.*?)```", TEXT, flags=re.DOTALL)
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their capitals
    unit.read_string(text)
    service = unit["Service"]
    parses(service["ExecStart"].removeprefix("/opt/cotswold/bin/"))
    from cotswold.api.servers import worker_host

    longest = worker_host._NOTICE_SECONDS + worker_host._END_SECONDS
    assert longest < float(service["TimeoutStopSec"]) < longest + 10
    assert service["KillMode"] == "mixed"
    assert "at most 25 s" in TEXT and "at most 20 s" in TEXT
