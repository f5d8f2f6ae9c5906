"""Dean, Corrado, Monga and others 2012, DistBelief: its figures, compared with Cotswold's.

Knows: the paper's statements, the results for each figure. Does not know: how results were measured, pages.
"""

from __future__ import annotations

from collections.abc import Iterable

from cotswold.analysis.plots import Line
from cotswold.analysis.report.blocks import Table, row
from lib.distbelief.images import lines as image_lines
from lib.papers.part import Claim, Found, Paper, Part, Result
from lib.papers.plots import figure, spread

RULES = {"sgd": "fixed rate", "momentum": "momentum", "adagrad": "Adagrad"}


def figure_3(simulated: Result) -> Found:
    """Return the speed-up over one machine."""
    slow, fast = (simulated[name]["networks"] for name in ("distbelief", "distbelief-10g"))

    def gain(networks: Result, network: str, machines: int) -> float:
        return float(next(each["speed_up"] for each in networks[network] if each["ranks"] == machines))

    largest = "images, 36 maps"
    lines = [
        Line(
            f"{label}, {rate}",
            _of(networks[name], "ranks"),
            _of(networks[name], "speed_up"),
            colour,
            dashed=far,
        )
        for colour, (label, name) in enumerate((("speech", "speech"), ("1.7 billion", largest)))
        for rate, networks, far in (("1 Gbit/s", slow, False), ("10 Gbit/s", fast, True))
    ]
    most = max(_of(slow["speech"], "speed_up"))
    return Found(
        [
            Claim(
                "1.7 billion parameters: more than 12 times on 81 machines",
                f"{gain(slow, largest, 81):.1f} at 1 Gbit/s, {gain(fast, largest, 81):.1f} at 10",
            ),
            Claim(
                "speech: 2.2 times on 8 machines",
                f"{gain(slow, 'speech', 8):.1f} at 1 Gbit/s, {gain(fast, 'speech', 8):.1f} at 10",
            ),
            Claim("speech: slower beyond 8", f"no: {most:.1f} at most at 1 Gbit/s, flat from 2 on"),
        ],
        [figure("dean-3", "Figure 3", lines, x="machines", y="speed-up over one machine", scale="log")],
        note="The paper states neither the network of its machines nor the batch (100 here).",
    )


def figure_4(found: Result) -> Found:
    """Return accuracy by time, of each way from one warm start."""
    rows = found["summary"]["rows"]
    if not rows:
        return Found()
    ways = dict.fromkeys(each["way"] for each in rows)
    cells = found["cells"]
    lines = [
        Line(
            way,
            cells[f"{way}; 0"]["seconds"],
            [100 * one for one in cells[f"{way}; 0"]["accuracy"]["held-out"]],
            n,
        )
        for n, way in enumerate(ways)
        if f"{way}; 0" in cells
    ]
    best = min(rows, key=lambda each: float(each["seconds"]))
    shown = [
        row(each["way"], f"{100 * each['best']:.1f} %", f"{each['seconds']:.0f} s", f"{each['cores']:.1f}")
        for each in rows
    ]
    accuracy = 100 * found["summary"]["accuracy"]
    head = ["", "Best\nheld-out", f"To {accuracy:.1f} %", "Cores"]
    return Found(
        [
            Claim(
                "Downpour with Adagrad reaches an accuracy first, and with fewest machines",
                f"{best['way']} first reaches {accuracy:.1f} %, after {best['seconds']:.0f} s",
            )
        ],
        [figure("dean-4", "Figure 4, first seed", lines[:4], x="seconds", y="% of held-out frames")],
        [Table(head, shown)],
    )


def figure_5(found: Result) -> Found:
    """Return time to an accuracy by machines, simulated beyond this machine."""
    rows = [each for each in found["summary"]["simulated"] if each["seconds"] is not None]
    if not rows:
        return Found()
    ways = dict.fromkeys(each["way"] for each in rows)
    own = {way: [each for each in rows if each["way"] == way] for way in ways}
    lines = [
        Line(way, _of(own[way], "replicas"), _of(own[way], "seconds"), n, dots=True)
        for n, way in enumerate(ways)
    ]
    claims = [
        Claim(
            f"{way}: more machines, less time",
            f"{rows[0]['seconds']:.0f} s with {rows[0]['replicas']}, "
            f"{min(_of(rows, 'seconds')):.0f} s at best with "
            f"{min(rows, key=lambda each: float(each['seconds']))['replicas']}",
        )
        for way, rows in own.items()
    ]
    return Found(claims, [figure("dean-5", "Figure 5", lines, x="replicas", y="seconds", scale="log")])


def adagrad(stale: Result) -> Found:
    """Return the number of replicas that learn productively with each rule."""
    told = stale["summary"]
    lines = []
    for colour, (rule, name) in enumerate(RULES.items()):
        own = [each for each in told["rows"] if each["rule"] == rule]
        if own:
            y = [100 * each["test"] for each in own]
            lines.append(Line(name, _of(own, "replicas"), y, colour, dots=True))
    most = told["productive"]
    return Found(
        [
            Claim(
                "Adagrad extends the number of replicas that work productively",
                "; ".join(f"{name}: {most[rule]}" for rule, name in RULES.items() if rule in most)
                + f" replicas within {100 * told['points']:.0f} point of one's accuracy",
            )
        ],
        [figure("dean-adagrad", "Each at its best rate", lines, x="replicas", y="% of test samples")],
        note="Replicas in virtual time with real gradients; 784-100-10 on MNIST, five rates each.",
    )


def downpour(found: Result) -> Found:
    """Return replicas on this machine: undisturbed, one slowed, one killed."""
    said = {
        "two": ("replicas work independently of each other", "two over two isolated processes"),
        "quarter": ("and of each other's speed", "one at a quarter, over the sum of both speeds"),
        "killed": ("a machine that fails does not stop the others", "one killed, over none killed"),
    }
    told = found["summary"]
    return Found(
        [
            Claim(stated, f"{told[name]['ratio']:.2f}: {what}")
            for name, (stated, what) in said.items()
            if name in told
        ]
    )


def sandblaster(found: Result) -> Found:
    """Return workers of a whole-set evaluation that are slow, stopped or killed."""
    said = {
        "two, sandblaster": "two workers over two isolated processes",
        "sixteenth, sandblaster": "one at a sixteenth of its speed, over the ideal time",
        "killed, sandblaster": "one killed at intervals, over equal time without kills",
    }
    cases = found["cases"]
    return Found(
        [
            Claim("portions much smaller than 1/N and backup copies", f"{cases[name]['ratio']:.2f}: {text}")
            for name, text in said.items()
            if name in cases
        ]
    )


def images(found: Result) -> Found:
    """Return images by untied filters, random and learnt without labels."""
    claims = []
    ways = {each["way"]: each for each in found["summary"]["rows"]}
    for name in ways:
        tests = [cell["test"] for key, cell in found["cells"].items() if key.startswith(f"{name};")]
        random = f"chance {100 / found['cells'][f'{name}; 0']['classes']:.0f} %"
        claims.append(Claim(f"{name}: over 15 % of 21,000 categories", f"{spread(tests, 1)}; {random}"))
    for gain in found["summary"]["gains"]:
        claims.append(
            Claim(
                "Le et al. 2012: filters learnt without labels help (13.6 to 15.8 %)",
                f"{gain['of']}: {gain['points']:+.1f} points over {gain['over']}",
            )
        )
    if not claims:
        return Found()
    lines = image_lines(found)
    caption = "Validation accuracy after each epoch, mean over seeds"
    drawn = [figure("dean-images", caption, lines, x="epoch", y="% of validation images", bottom=0)]
    return Found(
        claims,
        drawn if lines else (),
        note=(
            "Caltech-101 without BACKGROUND_Google and Faces (Faces_easy has the same photographs): 100 "
            "categories, 5,358 images of 64 x 64 to learn from, 1,648 held out."
        ),
    )


def _of(rows: Iterable[Result], name: str) -> list[float]:
    return [float(each[name]) for each in rows]


PAPER = Paper(
    "dean2012",
    "DistBelief, reproduced",
    "Dean, Corrado, Monga and others 2012: the paper's figures, and Cotswold's on this machine or "
    "predicted for the paper's machines.",
    (
        Part(
            "Figure 3",
            "model parallelism",
            "simulated",
            "The speech network and an image network of 1.65 billion parameters, on 1 to 128 machines.",
            "1.7 billion parameters: more than 12 times on 81 machines; speech: 2.2 times on 8, slower "
            "beyond.",
            ("simulate",),
            figure_3,
        ),
        Part(
            "Figure 4",
            "accuracy by time",
            "measured",
            "Spoken digits in the paper's setting of speech, two hidden layers of 512; all ways from one "
            "warm start of plain SGD, each at its best rate.",
            "Downpour with Adagrad is fastest; Sandblaster L-BFGS scales best at the far end.",
            ("downpour-vs-sandblaster",),
            figure_4,
        ),
        Part(
            "Figure 5",
            "time to an accuracy by machines",
            "simulated",
            "Downpour on 1 to 64 replicas event by event with real gradients and the measured time of a "
            "step.",
            "Downpour with Adagrad is the best trade of time for machines.",
            ("downpour-vs-sandblaster",),
            figure_5,
        ),
        Part(
            "Section 4.1",
            "Adagrad and the number of replicas",
            "measured",
            "SGD, momentum and Adagrad on the servers, after equal samples.",
            "Adagrad extends the maximum number of replicas that can productively work.",
            ("staleness",),
            adagrad,
        ),
        Part(
            "Section 4.1, here",
            "Downpour on this machine",
            "measured",
            "Two replicas, a server and their data on two cores.",
            "Replicas run independently of each other; a machine that fails does not stop the others.",
            ("downpour",),
            downpour,
        ),
        Part(
            "Section 4.2",
            "Sandblaster's coordinator",
            "measured",
            "Value and gradient over the whole training set by two workers of a cluster.",
            "Portions are much smaller than 1/N, and the last ones are computed by several.",
            ("batch",),
            sandblaster,
        ),
        Part(
            "Section 5",
            "images by untied local filters",
            "measured",
            "Three stages of untied local filters of 10 x 10, pooling, contrast normalisation, then a "
            "logistic output per category; filters random, and learnt without labels.",
            "Over 15 % accuracy on 21,000 categories of ImageNet.",
            ("distbelief-images",),
            images,
        ),
        Part(
            "Section 5, ImageNet",
            "16 million images of 21,000 categories",
            "left out",
            "ImageNet and thousands of machines for 1.7 billion parameters are not available.",
            "Over 15 % accuracy, the best known then.",
        ),
        Part(
            "Section 5, speech",
            "1.1 billion frames",
            "left out",
            "The frames are Google's; the recipe distbelief-speech has the network's shape.",
            "42 million parameters, 8192 states, 1.1 billion weakly labelled frames.",
        ),
    ),
    ("figures 1 and 2 are diagrams",),
)
