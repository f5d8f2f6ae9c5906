"""Figures of the page *How it compares*, and where they come from.

Knows: sentences of the page. Does not know: how they are looked for.
"""

from __future__ import annotations

from functools import partial

from tests.support.explanation.quote import NUMBERS, Quote
from tests.support.explanation.reading import (
    CHOSEN,
    adam,
    bunyip,
    by,
    fed,
    fires,
    killed,
    lbfgs,
    median,
    memory,
    ratios,
    reduced,
    rounded,
    span,
    untied,
)

AUTOGRAD = "PyTorch's autograd"


_quote = partial(Quote, "comparison")


COMPARISON = [
    _quote(
        "{} untied layers, forward | {} to {} times as fast on one thread, {} to {} on two",
        "kernels",
        lambda d: [NUMBERS[len(ratios(d, "untied", "forward", 1))], *untied(d, "forward", 1, 2)],
    ),
    _quote("{} to {} and {} to {} times | AMD", "kernels", lambda d: untied(d, "forward + backward", 1, 2)),
    _quote(
        "{} to {} and {} to {} times | Intel",
        "kernels-intel-amx",
        lambda d: untied(d, "forward", 2) + untied(d, "forward + backward", 2),
    ),
    _quote("of these layers | {} to {} of it", "kernels", lambda d: span(memory(d), 2)),
    _quote(
        "one thread | {}, {} and {} times as fast",
        "plain-loops-intel-amx-1",
        lambda d: rounded((row["times_as_fast"] for row in d["rows"] if row["recipe"] == "faces"), 1),
    ),
    _quote(
        "a step of `adam-mnist`, one thread | {} times as fast",
        "plain-loops-intel-amx-1",
        lambda d: rounded([by(d["rows"], recipe="adam-mnist")["times_as_fast"]], 2),
    ),
    _quote(
        "one thread | {} and {} of the time",
        "convolutions-intel-amx",
        lambda d: rounded(
            (
                by(d["rows"], recipe=each, what="step", threads=1)["share"]["median"]
                for each in ("adam-mnist", "cifar10")
            ),
            2,
        ),
    ),
    _quote(
        "320 samples | {} times as fast on one thread, {} on two",
        "kernels",
        lambda d: rounded((bunyip(d, 320, threads, AUTOGRAD) for threads in (1, 2)), 2),
    ),
    _quote(
        "on {} problems | {} to {} times as many",
        "optimisers",
        lambda d: [NUMBERS[len(lbfgs(d))], *span(lbfgs(d), 2)],
    ),
    _quote("a gradient of {} MB", "reduction", lambda d: rounded([d["bytes"] / 1e6], 1)),
    _quote(
        "| {} s; Gloo takes {} s, or {} s",
        "reduction",
        lambda d: rounded(
            (
                reduced(d, "neighbouring", CHOSEN),
                reduced(d, "neighbouring", "reduce: Gloo"),
                reduced(d, "interleaved", "reduce: Gloo"),
            ),
            2,
        ),
    ),
    _quote(
        "within a host | {} to {} times the rate",
        "scaling",
        lambda d: span([median(row) for row in d["rows"] if row["group"] == "exchange"], 1),
    ),
    _quote(
        "weights | {} times the samples per second",
        "hogwild",
        lambda d: rounded([d["ratio"]["torch.multiprocessing"]], 2),
    ),
    _quote("| {} by data servers; {}; {}; {} |", "data-servers", lambda d: fed(d, "mnist")),
    _quote("| {} by data servers; {}; {}; {} |", "data-servers", lambda d: fed(d, "caltech")),
    _quote(
        "three copies | {} times the samples per second, because replicas push less often",
        "fault-training",
        lambda d: rounded([fires(d)[0] / fires(d)[1]], 2),
    ),
    *(
        _quote(
            "killed every 20 s | {} of the evaluations",
            "batch",
            partial(killed, way=way),
        )
        for way in ("bunyip", "sandblaster")
    ),
    _quote(
        "with 16 replicas {} points on MNIST", "adam-accuracy", lambda d: [adam(d, 16)[2].removeprefix("-")]
    ),
    _quote(
        "on two cores compute {} of what two isolated",
        "downpour",
        lambda d: rounded([d["summary"]["two"]["ratio"]], 3),
    ),
]
