"""Sentences of docs/explanation with figures, and how a file of results, or the code, gives these figures.

Knows: the sentences. Does not know: how they are looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import exp
from typing import Any, NamedTuple

from tests.support.explanation.reading import (
    CHOSEN,
    TREE,
    adam,
    billions,
    bunyip,
    by,
    copies,
    counts,
    error,
    fed,
    fires,
    largest,
    lbfgs,
    learnt,
    links,
    median,
    memory,
    met,
    offloaded,
    paper,
    percent_of,
    predicted,
    ratios,
    reduced,
    result,
    rounded,
    seconds,
    span,
    stale,
    staleness,
    target,
    untied,
)

from cotswold.recipe.schema import Cluster
from cotswold.recipe.schema.cluster import MOST_COPIES
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.replica.lease import DRIFT

NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")
AUTOGRAD = "PyTorch's autograd"
CODE = ""
"""In place of a file: the figures are those of the code."""


class Quote(NamedTuple):
    """A text of a page, with {} in place of its figures."""

    page: str
    text: str
    file: str
    values: Callable[[Any], Iterable[object]]

    def rendered(self) -> str:
        """Return the text with the figures."""
        return self.text.format(*self.values(result(self.file) if self.file else None))


def _comparison(text: str, file: str, values: Callable[[Any], Iterable[object]]) -> Quote:
    return Quote("comparison", text, file, values)


def _limits(text: str, file: str, values: Callable[[Any], Iterable[object]]) -> Quote:
    return Quote("limits", text, file, values)


def _papers(text: str, file: str, values: Callable[[Any], Iterable[object]]) -> Quote:
    return Quote("papers", text, file, values)


COMPARISON = [
    _comparison(
        "{} untied layers, forward | {} to {} times as fast on one thread, {} to {} on two",
        "kernels",
        lambda d: [NUMBERS[len(ratios(d, "untied", "forward", 1))], *untied(d, "forward", 1, 2)],
    ),
    _comparison(
        "{} to {} and {} to {} times | AMD", "kernels", lambda d: untied(d, "forward + backward", 1, 2)
    ),
    _comparison(
        "{} to {} and {} to {} times | Intel",
        "kernels-intel-amx",
        lambda d: untied(d, "forward", 2) + untied(d, "forward + backward", 2),
    ),
    _comparison("of these layers | {} to {} of it", "kernels", lambda d: span(memory(d), 2)),
    _comparison(
        "one thread | {}, {} and {} times as fast",
        "plain-loops-intel-amx-1",
        lambda d: rounded((row["times_as_fast"] for row in d["rows"] if row["recipe"] == "faces"), 1),
    ),
    _comparison(
        "a step of `adam-mnist`, one thread | {} times as fast",
        "plain-loops-intel-amx-1",
        lambda d: rounded([by(d["rows"], recipe="adam-mnist")["times_as_fast"]], 2),
    ),
    _comparison(
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
    _comparison(
        "320 samples | {} times as fast on one thread, {} on two",
        "kernels",
        lambda d: rounded((bunyip(d, 320, threads, AUTOGRAD) for threads in (1, 2)), 2),
    ),
    _comparison(
        "on {} problems | {} to {} times as many",
        "optimisers",
        lambda d: [NUMBERS[len(lbfgs(d))], *span(lbfgs(d), 2)],
    ),
    _comparison("a gradient of {} MB", "reduction", lambda d: rounded([d["bytes"] / 1e6], 1)),
    _comparison(
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
    _comparison(
        "within a host | {} to {} times the rate",
        "scaling",
        lambda d: span([median(row) for row in d["rows"] if row["group"] == "exchange"], 1),
    ),
    _comparison(
        "weights | {} times the samples per second",
        "hogwild",
        lambda d: rounded([d["ratio"]["torch.multiprocessing"]], 2),
    ),
    _comparison("| {} by data servers; {}; {}; {} |", "data-servers", lambda d: fed(d, "mnist")),
    _comparison("| {} by data servers; {}; {}; {} |", "data-servers", lambda d: fed(d, "caltech")),
    _comparison(
        "three copies | {} times the samples per second, because replicas push less often",
        "fault-training",
        lambda d: rounded([fires(d)[0] / fires(d)[1]], 2),
    ),
    *(
        _comparison(
            "killed every 20 s | {} of the evaluations",
            "batch",
            lambda d, way=way: rounded([d["cases"][f"killed, {way}"]["ratio"]], 2),
        )
        for way in ("bunyip", "sandblaster")
    ),
    _comparison(
        "with 16 replicas {} points on MNIST", "adam-accuracy", lambda d: [adam(d, 16)[2].removeprefix("-")]
    ),
    _comparison(
        "on two cores compute {} of what two isolated",
        "downpour",
        lambda d: rounded([d["summary"]["two"]["ratio"]], 3),
    ),
]

LIMITS = [
    _limits(
        "two threads | {} | {} for the largest stack",
        "kernels",
        lambda d: [target(d, "paper", "stack_step"), *rounded(paper(d, "stack_step", 2)[-1:], 2)],
    ),
    _limits("; {} to {} on Intel | AMD", "kernels-intel-amx", lambda d: span(paper(d, "stack_step", 2), 2)),
    _limits(
        "320 and 1280 samples | {} | {} and {} on one thread",
        "kernels",
        lambda d: [
            target(d, "dense", "value and gradient"),
            *rounded((bunyip(d, images, 1) for images in (320, 1280)), 2),
        ],
    ),
    _limits(
        "| {} times | least {} times",
        "kernels",
        lambda d: [
            target(d, "untied", "forward"),
            *rounded([min(ratios(d, "untied", "forward + backward", 1))], 1),
        ],
    ),
    _limits(
        "compared with `y += x` | {} | {} on one thread",
        "kernels",
        lambda d: [
            target(d, "smoothing", "contrast normalisation, backward"),
            *rounded(ratios(d, "smoothing", "contrast normalisation, backward", 1)[:1], 2),
        ],
    ),
    _limits(
        "on two ranks | {} | {} to {}; {} of {} rows meets it",
        "scaling",
        lambda d: [
            target(d, "weak", "step"),
            *span(ratios(d, "weak", "step"), 2),
            NUMBERS[met(d, "weak", "step", "one process")],
            NUMBERS[len(ratios(d, "weak", "step"))],
        ],
    ),
    _limits(
        "by difference | {} | less than {} to {}; {} of {} rows meets it",
        "hosts/scaling",
        lambda d: [
            target(d, "hidden", "step, 10 Gb/s"),
            0 if min(ratios(d, "hidden", "step, 10 Gb/s")) < 0 else "some",
            *rounded([max(ratios(d, "hidden", "step, 10 Gb/s"))], 2),
            NUMBERS[met(d, "hidden", "step, 10 Gb/s", "messages hidden")],
            NUMBERS[len(ratios(d, "hidden", "step, 10 Gb/s"))],
        ],
    ),
    _limits(
        "with validation | 5 % | {} %; {} % without validation",
        "training",
        lambda d: rounded((d["loop"]["added_percent"], d["loop"]["added_without_validation_percent"]), 1),
    ),
    _limits(
        "| {} | {} of the forward pass's speed",
        "evaluate",
        lambda d: [d["least_accepted"], *rounded([d["of_forward"]["second pass"]["median"]], 2)],
    ),
    _limits(
        "; {} on Intel | AMD",
        "evaluate-intel-amx",
        lambda d: rounded([d["of_forward"]["second pass"]["median"]], 2),
    ),
    _limits(
        "Pillow alone | {} | {} |",
        "prepare-zen5",
        lambda d: [d["least_accepted"], *rounded([d["of_pillow"]["median"]], 2)],
    ),
    _limits(
        "isolated processes | {} | {} |",
        "downpour",
        lambda d: [*rounded([d["summary"]["two"]["bar"]], 2), *rounded([d["summary"]["two"]["ratio"]], 3)],
    ),
    _limits("of MNIST | {} % | {} % |", "data-servers", lambda d: percent_of(d, "mnist: a trainer's")),
    _limits("Caltech-101 | {} % | {} % |", "data-servers", lambda d: percent_of(d, "caltech: processor")),
    _limits(
        "takes {} times the processor time of a server without replication",
        "server-copies",
        lambda d: [copies(d, "16 KB", 1, "no copies")],
    ),
    _limits(
        "all {} checked products, {} short runs",
        "device-h100",
        lambda d: [sum(e["is_right"] for e in d["errors"]), NUMBERS[sum(r["is_right"] for r in d["runs"])]],
    ),
    _limits(
        "and {} tests marked `cuda` in {} s, of which {} failed",
        "device-h100",
        lambda d: [
            *(word for word in d["tests"][0]["summary"].split() if word.isdigit()),
            "none" if "none failed" in d["tests"][0]["summary"] else "some",
        ],
    ),
    _limits(
        "H100 with torch {}",
        "device-h100",
        lambda d: [d["machine"]["versions"]["torch"].rpartition(".")[0]],
    ),
    _limits("with {} simulated servers", "controllers", lambda d: [f"{d['table'][-1]['servers']:,}"]),
    _limits("| {} million weights in {} GB", "largest-async", lambda d: largest(d)),
    _limits(
        "| {} to {} bytes for", "largest-async", lambda d: span([*d["summary"]["bytes_a_weight"].values()], 0)
    ),
    _limits("| {} weights, one update in {} s", "offload-largest", lambda d: offloaded(d)),
    _limits("copies of a bucket | {} |", CODE, lambda _: [MOST_COPIES]),
    _limits(
        "`cluster.heartbeat_timeout` ({:g} s), a silent primary after a lease ({:g} s)",
        CODE,
        lambda _: [Cluster().heartbeat_timeout, ControllerSettings().lease_seconds],
    ),
    _limits("the clock of a host runs more than {:g} % fast or slow", CODE, lambda _: [100 * DRIFT]),
]

STALENESS = [
    *(
        Quote(
            "staleness",
            f"| {number} | {{}} | {2 * number - 1} |",
            "staleness",
            lambda d, number=number: [staleness(d, number)],
        )
        for number in (1, 4, 16, 64, 256)
    ),
    *(
        Quote(
            "staleness",
            f"| {number} | {{}} % | {{}} % | {{}} % |",
            "staleness",
            lambda d, number=number: stale(d, number),
        )
        for number in (1, 4, 16, 64)
    ),
    Quote("staleness", "| 256 | {} % | {} % | not run |", "staleness", lambda d: stale(d, 256)),
    Quote(
        "staleness",
        "a factor of {} (one standard deviation)",
        "staleness",
        lambda d: rounded([exp(d["settings"]["speeds"])], 2),
    ),
    Quote("staleness", "| 1 | {} | {} % |", "adam-accuracy", lambda d: adam(d, 1)),
    *(
        Quote(
            "staleness",
            f"| {number} | {{}} | {{}} % | {{}} points ({{}} to {{}}) |",
            "adam-accuracy",
            lambda d, number=number: adam(d, number),
        )
        for number in (4, 16)
    ),
]

SERVERS = [
    Quote(
        "exactly-once",
        "{} faults of {} kinds",
        "fault-training",
        lambda d: [sum(each["times"] for each in d["failovers"]), len(d["failovers"])],
    ),
    Quote(
        "exactly-once",
        "{} samples had counted once, and {} were torn",
        "fault-training",
        lambda d: counts(d, "every sample counts once")[:2],
    ),
    Quote(
        "exactly-once",
        "Each of {} shards had {} updates",
        "fault-training",
        lambda d: counts(d, "every push is in every shard")[2:],
    ),
    Quote(
        "exactly-once",
        "left {1} batches in each of {0} shards",
        "fault-training",
        lambda d: counts(d, "updates add up exactly")[:2],
    ),
    Quote(
        "replication",
        "again {} s after a primary is killed, and {} s after it is suspended",
        "server-failover-zen5",
        lambda d: [seconds(d, f"a primary is {what}") for what in ("killed", "stopped")],
    ),
    *(
        Quote(
            "replication",
            text,
            "server-copies",
            lambda d, size=size: [copies(d, size, 1, "no copies"), copies(d, size, 3, "1 copy")],
        )
        for size, text in (
            ("16 KB", "| 16 KB | {} times the processor time | {} times |"),
            ("1 MB", "| 1 MB | {} times | {} times |"),
        )
    ),
    Quote(
        "replication",
        "{} of the rate of one copy by star, and {} by chain",
        "server-links-zen5",
        lambda d: [links(d, way) for way in ("star", "chain")],
    ),
    Quote("replication", "subtracts {:g} %", CODE, lambda _: [100 * DRIFT]),
    Quote(
        "replication",
        "A lease lasts {} second",
        CODE,
        lambda _: [NUMBERS[int(ControllerSettings().lease_seconds)]],
    ),
    Quote("replication", "up to {} further copies", CODE, lambda _: [NUMBERS[MOST_COPIES - 1]]),
]

PAPERS = [
    _papers(
        "{} of the fastest dense product on one thread of an AMD EPYC, 1280 samples",
        "kernels",
        lambda d: rounded([bunyip(d, 1280, 1)], 2),
    ),
    _papers(
        "the chosen plan is {} and {} times as fast",
        "reduction",
        lambda d: rounded(
            (
                reduced(d, order, TREE) / reduced(d, order, CHOSEN)
                for order in ("neighbouring", "interleaved")
            ),
            1,
        ),
    ),
    _papers(
        "{} % with 343,800 patterns after 8 TFLOP, {} % with L-BFGS and cross entropy",
        "bunyip",
        lambda d: [error(d, "cg", "squared_error"), error(d, "lbfgs", "cross_entropy")],
    ),
    _papers("{} cents predicted", "bunyip-figures", lambda d: predicted(d, "92.4 cents")),
    _papers("{} times at {} Gbit/s, {} at {}", "simulate", lambda d: predicted(d, "1.7 B")),
    _papers(
        "{} % with learnt filters, {} % with random ones",
        "distbelief-images",
        lambda d: [learnt(d, f"{kind} filters, tuned") for kind in ("learnt", "random")],
    ),
    _papers(
        "at least {}, {} and {} of the fastest dense product",
        "kernels",
        lambda d: rounded((min(paper(d, product, 1)) for product in ("Wx", "W'x", "δx'")), 2),
    ),
    _papers("{} s per update of the third stack", "simulate", lambda d: predicted(d, "stack 3")[:1]),
    _papers(
        "{} %; k-means {} %, random filters {} %",
        "faces",
        lambda d: rounded(
            (
                100 * d["held_out_of_the_last_stack"]["faces"][each]
                for each in ("network", "dictionary", "random")
            ),
            1,
        ),
    ),
    _papers("one update of {} weights from disk in {} s", "offload-largest", lambda d: offloaded(d)),
    _papers(
        "{} times `torch.multiprocessing`",
        "hogwild",
        lambda d: rounded([d["ratio"]["torch.multiprocessing"]], 2),
    ),
    _papers(
        "{} billion as factors, {} as gradients, by one process",
        "server-trace",
        lambda d: [f"{billions(d, 'factors, 1 server'):.1f}", f"{billions(d, 'whole, 1 server'):.2f}"],
    ),
    *(
        _papers(
            "{} of the speed without disks",
            "persistence",
            lambda d, number=number: rounded([d["summary"][number]["ratio"]["median"]], 2),
        )
        for number in ("1", "3")
    ),
    _papers(
        "{} % with one replica, {} % with four",
        "adam-accuracy",
        lambda d: [adam(d, 1)[1], adam(d, 4)[1]],
    ),
    _papers(
        "by caches alone {} billion, not 36", "simulate", lambda d: predicted(d, "size grows faster")[4:5]
    ),
]

QUOTES = [*COMPARISON, *LIMITS, *STALENESS, *SERVERS, *PAPERS]
