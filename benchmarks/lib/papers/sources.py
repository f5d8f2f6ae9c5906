"""Commands that make the results of the papers' pages, at three sizes.

Knows: the arguments of every command, its approximate time on two cores. Does not know: the contents of a
result, how a command is run.

Arguments contain ``{out}``, the directory of results; ``{work}``, the directory of runs and stores;
``{minutes}`` and ``{hours}``, the time limit of a command that keeps finished cells and resumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Size = Literal["glance", "evening", "whole"]
SIZES: tuple[Size, ...] = get_args(Size)


def size_of(hours: float) -> Size:
    """Return the size of experiments for a number of hours."""
    return "glance" if hours < 2 else "evening" if hours < 12 else "whole"


@dataclass(frozen=True)
class Command:
    """Arguments of `cotswold` or a script of benchmarks/.

    If the file or folder ``makes`` exists, the command is not run again.
    """

    words: Sequence[str]
    makes: str | None = None


@dataclass(frozen=True)
class Source:
    """Commands of a result; the last one writes NAME.json."""

    commands: Mapping[Size, Sequence[Command]]
    minutes: Mapping[Size, float]
    """Minutes that the commands take; of resumable commands, their minimum."""
    goes_on: bool = False
    """True if the commands keep finished cells, so that the same command measures the missing ones."""


def _script(text: str) -> Command:
    return Command(text.split())


def _same(*commands: Command) -> dict[Size, Sequence[Command]]:
    return dict.fromkeys(SIZES, commands)


def _each(script: str, glance: str, evening: str, whole: str) -> dict[Size, Sequence[Command]]:
    texts = zip(SIZES, (glance, evening, whole), strict=True)
    return {size: (_script(f"{script} {text}"),) for size, text in texts}


def _minutes(glance: float, evening: float, whole: float) -> dict[Size, float]:
    return dict(zip(SIZES, (glance, evening, whole), strict=True))


_KEPT = "--minutes {minutes} --out {out} --stores {work}/stores"
_TRAFFIC = Command(
    [
        "cotswold",
        "train",
        "adam-mnist",
        "--run",
        "{work}/traffic",
        "--stores",
        "{work}/stores",
        "--resume-if-started",
        "--set",
        "training.strategy=downpour",
        "--set",
        "training.record_traffic=true",
        "--set",
        "training.epochs=1",
        "--set",
        "cluster.workers=2",
    ],
    makes="{work}/traffic/checkpoints",
)
_PRINT = Command(
    ["cotswold", "data", "make", "japanese-ocr", "{work}/japanese-ocr"],
    makes="{work}/japanese-ocr/japanese-ocr.json",
)
_BUNYIP = "bunyip.py {work}/japanese-ocr --run {work}/bunyip --out {out}"

SOURCES: Mapping[str, Source] = {
    "adam-accuracy": Source(
        _each(
            "adam_accuracy.py --hours {hours} --out {out} --stores {work}/stores",
            "--epochs 1 --tuning-epochs 1 --seeds 1",
            "--tuning-epochs 2 --seeds 2",
            "--seeds 5",
        ),
        _minutes(1, 15, 40),
        goes_on=True,
    ),
    "adam-cluster": Source(_same(_script("adam_cluster.py --out {out}")), _minutes(1, 1, 1)),
    "adam-figures": Source(
        _each(
            f"adam_figures.py {_KEPT}",
            "--rounds 1 --seconds 5",
            "--rounds 3 --seconds 15",
            "--rounds 5 --seconds 30",
        ),
        _minutes(1, 2, 2),
        goes_on=True,
    ),
    "adam-mnist": Source(
        _each(
            f"adam_mnist.py --case accuracy {_KEPT}",
            "--epochs 2 --seeds 1 --rate 0.05",
            "--epochs 10 --seeds 3",
            "--epochs 20 --seeds 5",
        ),
        _minutes(2, 8, 15),
        goes_on=True,
    ),
    "augment": Source(
        _each("augment.py --out {out}", "--rounds 3", "--rounds 7", "--rounds 15"), _minutes(1, 1, 1)
    ),
    "batch": Source(
        _each(
            "batch.py --out {out}",
            "--case two --rounds 1 --patterns 6400",
            "--rounds 3",
            "--rounds 9",
        ),
        _minutes(1, 15, 30),
    ),
    "bunyip": Source(
        {
            "glance": (_PRINT, _script(f"{_BUNYIP} --flops 2e12 --patterns 343800 --method lbfgs")),
            "evening": (_PRINT, _script(f"{_BUNYIP} --flops 3e13 --patterns 343800 --patterns 611200")),
            "whole": (_PRINT, _script(f"{_BUNYIP} --flops 2e14")),
        },
        _minutes(20, 120, 600),
    ),
    "bunyip-figures": Source(
        _each(
            "bunyip_figures.py --out {out}",
            "--rounds 0 --reductions 0",
            "--rounds 3 --reductions 3",
            "--rounds 5 --reductions 5",
        ),
        _minutes(1, 8, 12),
    ),
    "data-servers": Source(
        _each(
            f"data_servers.py {_KEPT}",
            "--subject mnist --rounds 1 --warm-seconds 1 --seconds 3",
            "--rounds 3 --kills 1",
            "--rounds 5 --kills 3",
        ),
        _minutes(1, 5, 10),
        goes_on=True,
    ),
    "distbelief-images": Source(
        _each(
            f"distbelief_images.py {_KEPT} --runs {{work}}/distbelief-images",
            "--epochs 2 --filter-epochs 1 --seeds 1 --rate 0.05",
            "--seeds 2",
            "--seeds 5",
        ),
        _minutes(2, 4, 4),
        goes_on=True,
    ),
    "downpour": Source(
        _each(
            f"downpour.py {_KEPT}",
            "--seconds 5 --every 5 --rounds 1",
            "--seconds 15 --every 30 --rounds 3",
            "--seconds 30 --every 30 --rounds 5",
        ),
        _minutes(1, 2, 3),
        goes_on=True,
    ),
    "downpour-vs-sandblaster": Source(
        _each(
            f"downpour_vs_sandblaster.py {_KEPT}",
            "--seconds 10 --warm-samples 5000 --simulated-epochs 0.5",
            "--seconds 60",
            "--seconds 180 --seeds 3",
        ),
        _minutes(2, 5, 10),
        goes_on=True,
    ),
    "faces": Source(_same(_script("faces.py {work}/faces --out {out}")), _minutes(12, 12, 12)),
    "hogwild": Source(
        _each(
            "hogwild.py --out {out} --stores {work}/stores",
            "--rounds 1 --samples 4000",
            "--rounds 5",
            "--rounds 5 --accuracy-samples 162000 --seeds 3",
        ),
        _minutes(1, 3, 15),
    ),
    "kernels": Source(
        {
            "glance": (_script("cotswold bench kernels --quick --out {out}"),),
            "evening": (_script("cotswold bench kernels --out {out}"),),
            "whole": (_script("cotswold bench kernels --threads 1,2 --out {out}"),),
        },
        _minutes(3, 10, 20),
    ),
    "largest-async": Source(
        _each(
            "largest_async.py --minutes {minutes} --out {out}",
            "--gigabytes 3",
            "--gigabytes 6",
            "--gigabytes 12",
        ),
        _minutes(1, 2, 4),
        goes_on=True,
    ),
    "offload-largest": Source(
        _same(_script("offload.py --stack 2 --batch 96 --largest --rounds 1 --folder {work} --out {out}")),
        _minutes(15, 15, 15),
    ),
    "reduction": Source(
        _each("reduction.py --out {out}", "--rounds 1", "--rounds 5", "--rounds 7"), _minutes(2, 4, 5)
    ),
    "scaling": Source(
        _each(
            "scaling.py --out {out}",
            "--quick --only weak --only strong",
            "--only weak --only strong",
            "--only weak --only strong --only alone",
        ),
        _minutes(2, 15, 20),
    ),
    "server-trace": Source(
        _same(_TRAFFIC, _script("cotswold bench server --trace {work}/traffic --out {out}")),
        _minutes(5, 5, 5),
    ),
    "simulate": Source(_same(_script("simulate.py {out}")), _minutes(2, 2, 2)),
    "staleness": Source(
        _each(
            f"staleness.py {_KEPT}",
            "--replicas 1 --replicas 4 --replicas 16 --epochs 1 --seeds 1",
            "--replicas 1 --replicas 4 --replicas 16 --replicas 64 --epochs 4",
            "--epochs 4",
        ),
        _minutes(1, 1, 1),
        goes_on=True,
    ),
}
