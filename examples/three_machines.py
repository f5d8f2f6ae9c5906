"""Train on three unequal machines: replicas at full, half and a quarter of the speed, on replicated servers.

    python examples/three_machines.py --out runs/machines

A controller, three parameter servers and three replicas run as processes of this machine. Signals stop slow
replicas for a part of each fifth of a second. No replica waits for another: a slow one takes fewer samples.
`examples/machines/compose.yaml` starts the same in containers. The program writes `three_machines.svg`.
"""

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from contextlib import suppress
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import cotswold

COTSWOLD = [sys.executable, "-m", "cotswold"]
RECIPE = Path(__file__).resolve().parent / "machines" / "digits.toml"
SPEEDS = {"replica-1": 1.0, "replica-2": 0.5, "replica-3": 0.25}


def replicas(directory: Path) -> dict[str, tuple[int, int]]:
    """Return the process and the number of counted samples of each replica of a run."""
    with suppress(cotswold.CotswoldError):  # the run has not started
        latest: Any = cotswold.why(directory).status.get("latest", {})
        found = latest.get("replicas", {}).get("replicas", ())
        return {each["name"]: (each["pid"], each["samples"]) for each in found}
    return {}


def send(processes: dict[str, tuple[int, int]], quarter: int) -> None:
    """Let each replica run in its share of the four quarters of a fifth of a second."""
    for name, (process, _) in processes.items():
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT if quarter < 4 * SPEEDS[name] else signal.SIGSTOP)


def main(out: Path, short: bool) -> None:
    out.mkdir(parents=True, exist_ok=True)
    pixels, classes = load_digits(return_X_y=True)
    np.savez(out / "digits.npz", x=(pixels / 16).astype(np.float32), labels=classes)
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    seen: dict[str, tuple[int, int]] = {}
    start = ["cluster", "start", "--controllers", place, "--servers", "3", "--token-file", "token"]
    train = [
        "train",
        str(RECIPE),
        "--run",
        "run",
        "--resume-if-started",
        "--set",
        f"cluster.controllers={place!r}",
    ]
    train += ["--set", f"training.epochs={20 if short else 120}"]
    with subprocess.Popen([*COTSWOLD, *start], cwd=out) as cluster:
        while not (out / "token").exists():
            if cluster.poll() is not None:
                raise SystemExit("the cluster did not start")
            time.sleep(0.1)
        environment = {**os.environ, "COTSWOLD_CLUSTER_TOKEN": (out / "token").read_text().strip()}
        with subprocess.Popen([*COTSWOLD, *train], cwd=out, env=environment) as training:
            try:
                for quarter in itertools.count():
                    if training.poll() is not None:
                        break
                    if quarter % 20 == 0:
                        seen = replicas(out / "run") or seen
                    send(seen, quarter % 4)
                    time.sleep(0.05)
            finally:
                send(seen, 0)  # a stopped process cannot end
        cluster.terminate()
    if training.returncode:
        raise SystemExit(training.returncode)

    run = cotswold.Run(out / "run")
    print(run.status, {name: samples for name, (_, samples) in sorted(seen.items())})
    figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    axes.bar(
        [f"{name}\nspeed {speed}" for name, speed in SPEEDS.items()],
        [seen.get(name, (0, 0))[1] for name in SPEEDS],
    )
    axes.set(ylabel="samples that count")
    figure.savefig(out / "three_machines.svg")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--short", action="store_true", help="small size, as in the tests")
    main(**vars(parser.parse_args()))
