"""Figures of the page *Limits*, and where they come from.

Knows: sentences of the page. Does not know: how they are looked for.
"""

from __future__ import annotations

from functools import partial

from tests.support.explanation.quote import CODE, NUMBERS, Quote
from tests.support.explanation.reading import (
    bunyip,
    copies,
    largest,
    met,
    offloaded,
    paper,
    percent_of,
    ratios,
    rounded,
    span,
    target,
)

from cotswold.recipe.schema import Cluster
from cotswold.recipe.schema.cluster import MOST_COPIES
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.replica.lease import DRIFT

_quote = partial(Quote, "limits")


LIMITS = [
    _quote(
        "two threads | {} | {} for the largest stack",
        "kernels",
        lambda d: [target(d, "paper", "stack_step"), *rounded(paper(d, "stack_step", 2)[-1:], 2)],
    ),
    _quote("; {} to {} on Intel | AMD", "kernels-intel-amx", lambda d: span(paper(d, "stack_step", 2), 2)),
    _quote(
        "320 and 1280 samples | {} | {} and {} on one thread",
        "kernels",
        lambda d: [
            target(d, "dense", "value and gradient"),
            *rounded((bunyip(d, images, 1) for images in (320, 1280)), 2),
        ],
    ),
    _quote(
        "| {} times | least {} times",
        "kernels",
        lambda d: [
            target(d, "untied", "forward"),
            *rounded([min(ratios(d, "untied", "forward + backward", 1))], 1),
        ],
    ),
    _quote(
        "compared with `y += x` | {} | {} on one thread",
        "kernels",
        lambda d: [
            target(d, "smoothing", "contrast normalisation, backward"),
            *rounded(ratios(d, "smoothing", "contrast normalisation, backward", 1)[:1], 2),
        ],
    ),
    _quote(
        "on two ranks | {} | {} to {}; {} of {} rows meets it",
        "scaling",
        lambda d: [
            target(d, "weak", "step"),
            *span(ratios(d, "weak", "step"), 2),
            NUMBERS[met(d, "weak", "step", "one process")],
            NUMBERS[len(ratios(d, "weak", "step"))],
        ],
    ),
    _quote(
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
    _quote(
        "with validation | 5 % | {} %; {} % without validation",
        "training",
        lambda d: rounded((d["loop"]["added_percent"], d["loop"]["added_without_validation_percent"]), 1),
    ),
    _quote(
        "| {} | {} of the forward pass's speed",
        "evaluate",
        lambda d: [d["least_accepted"], *rounded([d["of_forward"]["second pass"]["median"]], 2)],
    ),
    _quote(
        "; {} on Intel | AMD",
        "evaluate-intel-amx",
        lambda d: rounded([d["of_forward"]["second pass"]["median"]], 2),
    ),
    _quote(
        "Pillow alone | {} | {} |",
        "prepare-zen5",
        lambda d: [d["least_accepted"], *rounded([d["of_pillow"]["median"]], 2)],
    ),
    _quote(
        "isolated processes | {} | {} |",
        "downpour",
        lambda d: [*rounded([d["summary"]["two"]["bar"]], 2), *rounded([d["summary"]["two"]["ratio"]], 3)],
    ),
    _quote("of MNIST | {} % | {} % |", "data-servers", lambda d: percent_of(d, "mnist: a trainer's")),
    _quote("Caltech-101 | {} % | {} % |", "data-servers", lambda d: percent_of(d, "caltech: processor")),
    _quote(
        "takes {} times the processor time of a server without replication",
        "server-copies",
        lambda d: [copies(d, "16 KB", 1, "no copies")],
    ),
    _quote(
        "all {} checked products, {} short runs",
        "device-h100",
        lambda d: [sum(e["is_right"] for e in d["errors"]), NUMBERS[sum(r["is_right"] for r in d["runs"])]],
    ),
    _quote(
        "and {} tests marked `cuda` in {} s, of which {} failed",
        "device-h100",
        lambda d: [
            *(word for word in d["tests"][0]["summary"].split() if word.isdigit()),
            "none" if "none failed" in d["tests"][0]["summary"] else "some",
        ],
    ),
    _quote(
        "H100 with torch {}",
        "device-h100",
        lambda d: [d["machine"]["versions"]["torch"].rpartition(".")[0]],
    ),
    _quote("with {} simulated servers", "controllers", lambda d: [f"{d['table'][-1]['servers']:,}"]),
    _quote("| {} million weights in {} GB", "largest-async", lambda d: largest(d)),
    _quote(
        "| {} to {} bytes for", "largest-async", lambda d: span([*d["summary"]["bytes_a_weight"].values()], 0)
    ),
    _quote("| {} weights, one update in {} s", "offload-largest", lambda d: offloaded(d)),
    _quote("copies of a bucket | {} |", CODE, lambda _: [MOST_COPIES]),
    _quote(
        "`cluster.heartbeat_timeout` ({:g} s), a silent primary after a lease ({:g} s)",
        CODE,
        lambda _: [Cluster().heartbeat_timeout, ControllerSettings().lease_seconds],
    ),
    _quote("the clock of a host runs more than {:g} % fast or slow", CODE, lambda _: [100 * DRIFT]),
]
