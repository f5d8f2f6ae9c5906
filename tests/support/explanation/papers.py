"""Figures of the page *The papers*, and where they come from.

Knows: sentences of the page. Does not know: how they are looked for.
"""

from __future__ import annotations

from functools import partial

from tests.support.explanation.quote import Quote
from tests.support.explanation.reading import (
    CHOSEN,
    TREE,
    adam,
    billions,
    bunyip,
    error,
    learnt,
    offloaded,
    paper,
    persisted,
    predicted,
    reduced,
    rounded,
)

_quote = partial(Quote, "papers")


PAPERS = [
    _quote(
        "{} of the fastest dense product on one thread of an AMD EPYC, 1280 samples",
        "kernels",
        lambda d: rounded([bunyip(d, 1280, 1)], 2),
    ),
    _quote(
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
    _quote(
        "{} % with 343,800 patterns after 8 TFLOP, {} % with L-BFGS and cross entropy",
        "bunyip",
        lambda d: [error(d, "cg", "squared_error"), error(d, "lbfgs", "cross_entropy")],
    ),
    _quote("{} cents predicted", "bunyip-figures", lambda d: predicted(d, "92.4 cents")),
    _quote("{} times at {} Gbit/s, {} at {}", "simulate", lambda d: predicted(d, "1.7 B")),
    _quote(
        "{} % with learnt filters, {} % with random ones",
        "distbelief-images",
        lambda d: [learnt(d, f"{kind} filters, tuned") for kind in ("learnt", "random")],
    ),
    _quote(
        "at least {}, {} and {} of the fastest dense product",
        "kernels",
        lambda d: rounded((min(paper(d, product, 1)) for product in ("Wx", "W'x", "δx'")), 2),
    ),
    _quote("{} s per update of the third stack", "simulate", lambda d: predicted(d, "stack 3")[:1]),
    _quote(
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
    _quote("one update of {} weights from disk in {} s", "offload-largest", lambda d: offloaded(d)),
    _quote(
        "{} times `torch.multiprocessing`",
        "hogwild",
        lambda d: rounded([d["ratio"]["torch.multiprocessing"]], 2),
    ),
    _quote(
        "{} billion as factors, {} as gradients, by one process",
        "server-trace",
        lambda d: [f"{billions(d, 'factors, 1 server'):.1f}", f"{billions(d, 'whole, 1 server'):.2f}"],
    ),
    *(
        _quote(
            "{} of the speed without disks",
            "persistence",
            partial(persisted, copies=number),
        )
        for number in ("1", "3")
    ),
    _quote(
        "{} % with one replica, {} % with four",
        "adam-accuracy",
        lambda d: [adam(d, 1)[1], adam(d, 4)[1]],
    ),
    _quote(
        "by caches alone {} billion, not 36", "simulate", lambda d: predicted(d, "size grows faster")[4:5]
    ),
]
