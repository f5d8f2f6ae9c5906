"""Accuracy in Chilimbi et al. 2014: tables 1 and 2, sections 4.3.3 and 4.4.3, compared with Cotswold's
results.

Knows: the paper's statements, the results for each figure. Does not know: how results were measured, the
paper's other parts, pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cotswold.analysis.plots import Line
from cotswold.analysis.report.blocks import Figure
from lib.accuracy.cases import SYNCHRONOUS
from lib.accuracy.page import lines as curves
from lib.papers.part import Claim, Found, Part, Result
from lib.papers.plots import figure

NO_RUN = "no run is finished"


def table_1(accuracy: Result) -> Found:
    """Return the accuracy on MNIST's test samples of one replica, and of several asynchronous replicas."""
    rows = _rows(accuracy, "mnist")
    if not rows:
        return Found()
    compared = [each for each in accuracy["summary"]["compared"] if each["case"] == "mnist"]
    several = [each for each in rows if each["replicas"] != SYNCHRONOUS]
    claims = [
        *_claims("synchronous: 99.39 %", [each for each in rows if each["replicas"] == SYNCHRONOUS]),
        *_claims("asynchronous: 99.63 %", several),
    ]
    claims += [
        Claim("asynchrony helps, by 0.24 points", _answer(each) + f", {each['replicas']} replicas")
        for each in compared
    ] or [Claim("asynchrony helps, by 0.24 points", "not compared: no run of several replicas is finished")]
    caption = "Errors on validation samples"
    drawn = _drawn(accuracy, "mnist", caption)
    return Found(claims, drawn, note=_TABLE_1)


_TABLE_1 = (
    "Momentum, a falling rate, weight decay and dropout, which the paper does not specify. Replicas are "
    "simulated event by event with real gradients at the parameters that each pulled. Every choice is "
    "made on validation samples; test samples are evaluated once, with the last parameters of a run."
)


def _answer(each: Result) -> str:
    within = "" if each["low"] is None else f" (95 %: {each['low']:+.3f} to {each['high']:+.3f})"
    return f"{each['points']:+.3f} points{within}: {each['asynchrony']}"


def transformed(accuracy: Result) -> Found:
    """Return the accuracy on MNIST with distorted training samples."""
    rows = _rows(accuracy, "mnist-augmented")
    if not rows:
        return Found()
    said = "another form of the benchmark distorts training samples; no figure is stated"
    drawn = _drawn(accuracy, "mnist-augmented", "Errors on validation samples, distorted training samples")
    return Found(_claims(said, rows), drawn, note="Elastic, rotation, affine, translation; 40 epochs.")


def table_2(accuracy: Result) -> Found:
    """Return the accuracy of a network of the paper's shape on CIFAR-10."""
    plain, transformed = (_rows(accuracy, name) for name in ("cifar10", "cifar10-augmented"))
    if not plain and not transformed:
        return Found()
    claims = [
        *_claims("29.8 % of ImageNet's 22,000 categories", plain),
        *_claims("with the transforms of image servers", transformed),
    ]
    drawn = [
        *_drawn(accuracy, "cifar10", "Errors on validation samples"),
        *_drawn(accuracy, "cifar10-augmented", "The same, with transforms"),
    ]
    return Found(claims, drawn, note="CIFAR-10 as JPEG, 27,000 training images; guessing gives 10 %.")


def _rows(accuracy: Result, case: str) -> list[Any]:
    return [each for each in accuracy["summary"]["rows"] if each["case"] == case]


def _claims(said: str, rows: Sequence[Any]) -> list[Claim]:
    """Return one claim for each number of replicas, or that no run is finished."""
    return [
        Claim(
            said,
            f"{100 * each['test']:.2f} %"
            + (
                ", one seed"
                if each["seeds"] == 1
                else f" ({100 * each['least']:.2f} to {100 * each['greatest']:.2f}, {each['seeds']} seeds)"
            )
            + (", one replica" if each["replicas"] == SYNCHRONOUS else f", {each['replicas']} replicas"),
        )
        for each in rows
    ] or [Claim(said, NO_RUN)]


def _drawn(accuracy: Result, case: str, caption: str) -> list[Figure]:
    lines = curves(accuracy, case, "accuracy")
    name = f"adam-{case}"
    return [figure(name, caption, lines, x="samples", y="%", bottom=0)] if lines else []


def two_processes(mnist: Result) -> Found:
    """Return the accuracy of one process and of two real processes on MNIST's test samples."""
    rows = {each["training"]: each for each in mnist["summary"]["rows"]}
    claims = [
        Claim(
            f"{name}: {100 * each['paper']:.2f} %",
            f"{100 * each['test']:.2f} % ({100 * each['least']:.2f} to {100 * each['greatest']:.2f}, "
            f"{each['seeds']} seeds)",
        )
        for name, each in rows.items()
    ]
    if len(rows) == 2:
        gain = 100 * (rows["asynchronous"]["test"] - rows["synchronous"]["test"])
        claims.append(Claim("asynchrony helps, by 0.24 points", f"{gain:+.2f} points"))
    lines = [
        Line(
            name.replace(", 0", ""),
            range(1, 1 + len(cell["all_validation"])),
            [100 * one for one in cell["all_validation"]],
            colour=place,
        )
        for place, (name, cell) in enumerate(
            (name, cell) for name, cell in mnist["cells"].items() if name.endswith(", 0")
        )
    ]
    caption = "Validation accuracy after each epoch, first seed"
    drawn = [figure("mnist", caption, lines, x="epoch", y="% of validation samples")] if lines else []
    return Found(claims, drawn, note=_asynchronous(mnist))


def _asynchronous(mnist: Result) -> str:
    epochs = mnist["settings"]["epochs"]
    return (
        f"{epochs} epochs per run. The rate was chosen on validation samples with a separate seed, and the "
        "epoch too; test samples were evaluated once per run. Asynchronous: two replicas."
    )


def asynchrony(stale: Result) -> Found:
    """Return the accuracy by number of replicas, at real staleness."""
    rows = stale["summary"]["rows"]
    lines = []
    for colour, rule in enumerate(dict.fromkeys(each["rule"] for each in rows)):
        own = [each for each in rows if each["rule"] == rule]
        lines.append(
            Line(
                rule,
                [each["replicas"] for each in own],
                [100 * each["test"] for each in own],
                colour,
                dots=True,
            )
        )
    sgd = [each for each in rows if each["rule"] == "sgd"]
    said = ", ".join(f"{each['replicas']}: {100 * each['test']:.2f} %" for each in sgd)
    best = max(sgd, key=lambda each: each["test"]) if sgd else None
    helps = "" if best is None else f"; best: {best['replicas']}"
    return Found(
        [Claim("asynchrony adds noise that helps to generalise", f"replicas and accuracy: {said}{helps}")],
        [figure("adam-stale", "Each rule at its best rate", lines, x="replicas", y="% of test samples")],
        note="Replicas are interleaved in virtual time with real gradients, so staleness is real.",
    )


PARTS = (
    Part(
        "Table 1",
        "MNIST",
        "measured",
        "The paper's network, 10 and 20 maps of padded 5 x 5 convolutions (1,732,000 connections), without "
        "augmentation; one replica, and 4 and 16 replicas simulated with real gradients.",
        "99.63 % asynchronously, 99.39 % synchronously, 99.55 % the best known before.",
        ("adam-accuracy",),
        table_1,
    ),
    Part(
        "Table 1, here",
        "two real processes",
        "measured",
        "The same network with plain steps, by one process and by two asynchronous processes.",
        "99.63 % asynchronously, 99.39 % synchronously.",
        ("adam-mnist",),
        two_processes,
    ),
    Part(
        "Section 4.3",
        "does asynchrony help?",
        "measured",
        "Replicas interleaved in virtual time, event by event, with real gradients at the parameters that "
        "each pulled; a network 784-100-10 on MNIST.",
        "The authors believe that asynchrony adds stochastic noise that helps models to generalise.",
        ("staleness",),
        asynchrony,
    ),
    Part(
        "Section 4.3.3",
        "MNIST, transformed",
        "measured",
        "The network of table 1 with a new variant of every training image in every epoch.",
        "Transforms expand the training data and give higher accuracy; the paper uses none on MNIST.",
        ("adam-accuracy",),
        transformed,
    ),
    Part(
        "Table 2",
        "ImageNet 22k",
        "left out",
        "ImageNet's 15 million images are not available, and the paper's ten days on 62 machines are 27 "
        "years of one core each. The cost is simulated below.",
        "29.8 %, against 13.6 and 15.8 % before.",
    ),
    Part(
        "Table 2, here",
        "five convolutional and three fully connected layers on CIFAR-10",
        "measured",
        "The shape of the paper's network, reduced to images of 32 x 32 and ten categories: accuracies are "
        "for a different task.",
        "29.8 % on 22,000 categories of ImageNet.",
        ("adam-accuracy",),
        table_2,
    ),
)
