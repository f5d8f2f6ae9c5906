"""Chilimbi, Suzue, Apacible, Kalyanaraman 2014, Project Adam: its tables and figures, and ours beside.

Knows: what the paper states in words, which results stand beside which figure. Does not know: how a result
came about, pages.
"""

from __future__ import annotations

from collections.abc import Iterable

from cotswold.analysis.plots import Line
from cotswold.analysis.report.blocks import Figure, Table, row
from lib.papers.chilimbi_accuracy import PARTS as ACCURACY
from lib.papers.chilimbi_feeding import PARTS as FEEDING
from lib.papers.part import Claim, Found, Paper, Part, Result
from lib.papers.plots import figure, times


def transforms(found: Result) -> Found:
    """How fast one core makes variants of images."""
    rates = found["samples_per_second"]
    rows = [
        row(
            name,
            f"{rates[f'{name}, kernel']['median']:,.0f}",
            f"{rates[f'{name}, NumPy']['median']:,.0f}",
            f"{rates[f'{name}, SciPy']['median']:,.0f}" if f"{name}, SciPy" in rates else "",
        )
        for name in (key.removesuffix(", kernel") for key in rates if key.endswith(", kernel"))
    ]
    digits, own = "all in one, 1 x 28 x 28", "elastic, 1 x 28 x 28"
    return Found(
        [
            Claim(
                "a small set of machines is enough for transforms; no figure is stated",
                f"{rates[f'{digits}, kernel']['median']:,.0f} images of MNIST a second on one core, all "
                f"transforms in one; elastic alone {found['of_scipy'][own]['median']:.0f} times SciPy",
            )
        ],
        tables=[Table(["", "Here, images\na second", "NumPy", "SciPy"], rows)],
    )


def figure_8(figures: Result) -> Found:
    """Connections a second against cores."""
    rows = figures["summary"]["figure 8"]
    if not rows:
        return Found()
    name = "billion_connections_a_second"
    one = rows[0]
    here = [each for each in rows if each["is"] == "measured"]
    last = here[-1]
    gain = last[name] / one[name]
    lines = [
        Line("measured", _of(here, "cores"), _of(here, name), dots=True),
        Line("as many times as cores", _of(rows, "cores"), _of(rows, name), 1, dashed=True),
    ]
    return Found(
        [
            Claim(
                "super-linear to 4 cores, for caches",
                f"{gain:.2f} times on {last['cores']} cores; there are no more here",
            ),
            Claim("the height of the curve is in the image only", f"{one[name]:.3g} billion on one core"),
        ],
        [figure("adam-8", caption="Figure 8", lines=lines, x="cores", y="billion connections a second")],
    )


def figure_9(trace: Result) -> Found:
    """Updates a second by a parameter server, by form and number of servers."""
    rows = [each for each in trace["rows"] if each["facts"]["speed"] != "recorded"]
    by: dict[str, dict[int, float]] = {"whole": {}, "factors": {}}
    for each in rows:
        by[each["facts"]["form"]][each["facts"]["servers"]] = each["figures"]["cotswold"]["median"]
    most = max(by["factors"].values())
    lines = [
        Line(label, sorted(by[form]), [by[form][n] for n in sorted(by[form])], colour, dots=True)
        for colour, (form, label) in enumerate((("factors", "factors"), ("whole", "deltas")))
    ]
    measured = [each["facts"]["servers"] for each in rows if not each["facts"]["is_simulated"]]
    return Found(
        [
            Claim(
                "more than 13 billion updates a second, computed at the server",
                f"{by['factors'][1]:.3g} billion by one process, {most:.3g} at most",
            ),
            Claim(
                "deltas are bound by the network, and poor",
                f"{by['whole'][1]:.3g} billion by one process: factors give "
                f"{by['factors'][1] / by['whole'][1]:.0f} times as many",
            ),
        ],
        [figure("adam-9", "Figure 9", lines, x="server processes", y="billion updates a second", bottom=0)],
        note=(
            "The paper does not say what it counts as an update; here k factors of a layer of M x N weights "
            f"are k M N. Measured with up to {max(measured)} server processes, simulated from one beyond; "
            "the "
            "paper counts cores of one server."
        ),
    )


def figure_10(simulated: Result) -> Found:
    """The largest networks whose working sets fit the caches."""
    rows = simulated["adam"]["sizes"]
    paper = simulated["adam"]["at_36_billion"]
    least, most = rows[0]["connections"], rows[-1]["connections"]
    x = _of(rows, "machines")
    lines = [
        Line("by the cache", x, [each["connections"] / 1e9 for each in rows], dots=True),
        Line("in proportion", x, [least * each / 1e9 for each in x], 1, dashed=True),
    ]
    return Found(
        [
            Claim(
                "16 machines train 36 billion connections",
                f"{most / 1e9:.0f} billion fit the caches; 36 would go at "
                f"{paper['billion_connections_per_second']:.0f} billion a second, "
                f"{100 * paper['waiting_for_messages']:.0f} % of it waiting",
            ),
            Claim("size grows faster than machines", f"{times(most / least)} on 16 machines"),
        ],
        [figure("adam-10", "Figure 10", lines, x="machines", y="billion connections", bottom=0)],
        note="No constant was fitted: the residual is 36 billion against what fits.",
    )


def figure_11(figures: Result) -> Found:
    """Samples a second against replicas."""
    rows = figures["summary"]["figure 11"]
    if not rows:
        return Found()
    one = rows[0]["simulated"]
    at = {each["replicas"]: each for each in rows}
    here = [each for each in rows if each["measured"] is not None]
    lines = [
        Line("simulated, one host", _of(rows, "replicas"), _of(rows, "simulated")),
        Line("simulated, 10 Gbit/s", _of(rows, "replicas"), _of(rows, "simulated_10_gigabit"), 1),
        Line("measured", _of(here, "replicas"), _of(here, "measured"), 2, dots=True),
    ]
    return Found(
        [
            Claim(
                "4 to 22 replicas scale well",
                f"16 replicas {times(at[16]['simulated'] / one)} one, on one server process",
            ),
            Claim(
                "the server adds some overhead",
                f"measured on these cores: {_measured(here)}",
            ),
        ],
        [figure("adam-11", "Figure 11", lines, x="replicas", y="samples a second", bottom=0)],
    )


def _measured(rows: Iterable[Result]) -> str:
    return ", ".join(
        f"{each['measured']:.0f} samples a second by {each['replicas']} (predicted "
        f"{each['predicted_here']:.0f})"
        for each in rows
        if each["predicted_here"] is not None
    )


def cluster(found: Result) -> Found:
    """The network of over 2 billion connections on 62 machines."""
    rows = [
        row(
            each["replicas"],
            f"{each['machines']}",
            f"{each['images_a_second']:.0f}",
            f"{each['epochs_in_ten_days']:.0f}",
            f"{each['days_to_an_epoch']:.2f}",
            f"{100 * each['servers_busy']:.0f} %",
        )
        for each in found["clusters"]
    ]
    head = [
        "Replicas",
        "Machines",
        "Images\na second",
        "Epochs in\nten days",
        "Days an\nepoch",
        "Servers\nbusy",
    ]
    best = found["clusters"][0]
    servers = found["image_servers"]
    return Found(
        [
            Claim(
                "ten days to convergence on 62 machines",
                f"{best['epochs_in_ten_days']:.0f} epochs of 7.5 million images in ten days; the paper "
                "does not say how many it took",
            ),
            Claim(
                "48 machines are 16 replicas of 4",
                "that would be 64: 12 replicas of 4, or 16 of 3, are 48; all three are simulated",
            ),
            Claim(
                "4 image servers keep them fed",
                f"each must give {servers['images_a_second_each']:.0f} images a second, "
                f"{servers['megabytes_a_second_each']:.0f} MB: {100 * servers['of_a_link']:.0f} % of a link",
            ),
            Claim("22 replicas on 20 servers scale (figure 11)", _gain(found["replicas"])),
        ],
        tables=[Table(head, rows)],
        figures=[_speed(found["replicas"])],
        note=found["assumed"],
    )


def _gain(rows: list[Result]) -> str:
    first, last = rows[0], rows[-1]
    gain = last["images_a_second"] / first["images_a_second"]
    return f"{gain:.2f} times from {first['replicas']} to {last['replicas']}, which are 5.5 times as many"


def _speed(rows: list[Result]) -> Figure:
    lines = [
        Line("with servers", _of(rows, "replicas"), _of(rows, "images_a_second"), dots=True),
        Line("without", _of(rows, "replicas"), _of(rows, "without_servers"), 1, dashed=True),
    ]
    caption = "Figure 11 on the paper's machines: 20 parameter servers"
    return figure("adam-cluster", caption, lines, x="replicas of 4 machines", y="images a second", bottom=0)


def figure_12(found: Result) -> Found:
    """Sizes of the network, and how long an epoch of each takes."""
    rows = found["figure 12"]
    lines = [
        Line("", [each["billion_connections"] for each in rows], _of(rows, "days_to_an_epoch"), dots=True)
    ]
    return Found(
        [
            Claim(
                f"{each['billion_connections']:.2g} billion connections: {each['stated']}",
                f"{each['days_to_an_epoch']:.2f} days an epoch, {each['images_a_second']:.0f} images a "
                "second",
            )
            for each in rows
            if each["stated"]
        ],
        [figure("adam-12", "Time an epoch", lines, x="billion connections", y="days an epoch", bottom=0)],
        note="Accuracies need ImageNet's 15 million images; of figure 12 only the cost is redone.",
    )


def standby(found: Result) -> Found:
    """What standby machines save, for several rates of failure."""
    rows = [
        row(
            f"{each['days_between_failures']:.0f} days",
            f"{each['failures']:.1f}",
            f"{100 * each['with_standby']:.2f} %",
            f"{100 * each['without_standby']:.1f} %",
            f"{each['shards_lost']:.2g}",
        )
        for each in found["standby"]["rows"]
    ]
    head = [
        "A machine\nfails every",
        "Failures in\nten days",
        "Speed kept\nwith standby",
        "without",
        "Runs that lose\na shard",
    ]
    pools = found["standby"]["pools"]
    middle = found["standby"]["rows"][1]
    return Found(
        [
            Claim(
                "pools of 90, 20 and 10 machines include standby ones",
                f"{pools['training']}, {pools['servers']} and {pools['images']} of them stand by",
            ),
            Claim(
                "machines did fail, and fault tolerance was exercised",
                f"at one failure a machine in {middle['days_between_failures']:.0f} days "
                f"{100 * middle['with_standby']:.2f} % of the speed is kept, "
                f"{100 * middle['without_standby']:.1f} % without standby machines",
            ),
        ],
        tables=[Table(head, rows)],
        note=found["standby"]["assumed"],
    )


def largest(found: Result) -> Found:
    """What this machine trains asynchronously."""
    if not found["summary"]["rows"]:
        return Found()
    rows = [
        row(
            each["sends"],
            f"{each['parameters'] / 1e6:.0f} million",
            f"{each['step_seconds']:.1f} s",
            f"{each['pushed_bytes_a_step'] / 1e6:.0f} MB",
            f"{each['pulled_bytes_a_step'] / 1e6:.0f} MB",
            f"{each['peak_bytes'] / 2**30:.1f} GiB",
        )
        for each in found["summary"]["rows"]
    ]
    head = ["Sends", "Weights", "A step", "Pushed\na step", "Pulled\na step", "Memory\nat its peak"]
    return Found(
        [Claim("36 billion connections on 16 machines", found["summary"]["said"])],
        tables=[Table(head, rows)],
        note=found["summary"]["note"],
    )


def shared_memory(found: Result) -> Found:
    """Lock-free processes beside processes that only compute."""
    ratio = found["ratio"]["processes that only compute"]
    return Found(
        [
            Claim(
                "parameters updated without locks scale",
                f"{found['processes']} processes on one copy: {ratio:.3f} of as many that only compute, "
                f"{found['ratio']['torch.multiprocessing']:.2f} times PyTorch's own Hogwild",
            )
        ]
    )


def _of(rows: Iterable[Result], name: str) -> list[float]:
    return [each[name] for each in rows]


PAPER = Paper(
    "chilimbi2014",
    "Project Adam, redone",
    "Chilimbi, Suzue, Apacible and Kalyanaraman 2014: what the paper states, and what this library gives "
    "on the "
    "machine at hand, or predicts for the paper's.",
    (
        *ACCURACY,
        Part(
            "Section 3.1",
            "transforms of images",
            "measured",
            "Translation, rotation, affine and elastic transforms and crops of images in the "
            "shapes of MNIST and CIFAR-10, on one core, beside SciPy's.",
            "A small set of machines transforms data, to offload that from the training machines.",
            ("augment",),
            transforms,
        ),
        *FEEDING,
        Part(
            "Figure 8",
            "connections a second against cores",
            "measured",
            "Processes on one copy of the weights, without locks. The paper's count: connections times "
            "samples a "
            "second. More cores than there are here are not measured.",
            "Excellent scaling with cores, super-linear up to 4.",
            ("adam-figures",),
            figure_8,
        ),
        Part(
            "Section 3.2.3",
            "lock-free updates inside a machine",
            "measured",
            "Processes that learn on one copy of the weights, beside as many that share nothing.",
            "Weights are accessed and updated without locks.",
            ("hogwild",),
            shared_memory,
        ),
        Part(
            "Figure 9",
            "updates a second by a parameter server",
            "measured",
            "Traffic that a run on MNIST has recorded, replayed as fast as can be against real servers, as "
            "deltas "
            "and as factors.",
            "More than 13 billion updates a second; deltas are bound by the network.",
            ("server-trace",),
            figure_9,
        ),
        Part(
            "Figure 10",
            "model size against machines",
            "simulated",
            "The largest networks whose convolutions' working sets fit the machines' caches, the paper's own "
            "criterion.",
            "16 machines train a model of 36 billion connections; size grows faster than machines.",
            ("simulate",),
            figure_10,
        ),
        Part(
            "Figure 10, here",
            "the largest network that this machine trains asynchronously",
            "measured",
            "Two fully connected layers as large as the memory allows, by a replica and its servers, some "
            "steps.",
            "A model of 36 billion connections on 16 machines of 98 GB.",
            ("largest-async",),
            largest,
        ),
        Part(
            "Figure 11",
            "speed against replicas",
            "measured",
            "Replicas of the MNIST network and one server process; more than cores simulated event by "
            "event from "
            "the measured time of a step.",
            "4, 10, 12, 16 and 22 replicas scale well with 20 parameter servers.",
            ("adam-figures",),
            figure_11,
        ),
        Part(
            "Section 4.4.3",
            "the network of over 2 billion connections on 62 machines",
            "simulated",
            "Replicas of machines that cut the network, 10 parameter servers and 4 image servers, event by "
            "event.",
            "Ten days to convergence on 48 training machines, 10 parameter servers and 4 image servers.",
            ("adam-cluster",),
            cluster,
        ),
        Part(
            "Figure 12",
            "accuracy against size",
            "simulated",
            "What an epoch of each size costs on the same 62 machines.",
            "Larger models are more accurate: 1.1 billion connections 24 %, over 2 billion 29.8 %.",
            ("adam-cluster",),
            figure_12,
        ),
        Part(
            "Section 4.2",
            "standby machines",
            "simulated",
            "Failures at random on the 62 machines for ten days, with the pools' standby machines and "
            "without.",
            "Pools of 90, 20 and 10 machines include standby machines.",
            ("adam-cluster",),
            standby,
        ),
    ),
    (
        "figures 1, 2, 5, 6 and 7 are diagrams",
        "figures 3 and 4 are other people's results",
    ),
)
