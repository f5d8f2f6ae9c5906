"""Chilimbi, Suzue, Apacible, Kalyanaraman 2014, Project Adam: its tables and figures, compared with
Cotswold's.

Knows: the paper's statements, the results for each figure. Does not know: how results were measured, pages.
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
    """Return the speed of augmentation on one core."""
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
                f"{rates[f'{digits}, kernel']['median']:,.0f} images of MNIST per second on one core, all "
                f"transforms in one; elastic alone {found['of_scipy'][own]['median']:.0f} times SciPy",
            )
        ],
        tables=[Table(["", "Cotswold, images\nper second", "NumPy", "SciPy"], rows)],
    )


def figure_8(figures: Result) -> Found:
    """Return connections per second by cores."""
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
        Line("proportional to cores", _of(rows, "cores"), _of(rows, name), 1, dashed=True),
    ]
    return Found(
        [
            Claim(
                "super-linear to 4 cores, for caches",
                f"{gain:.2f} times on {last['cores']} cores, the most on this machine",
            ),
            Claim("the height of the curve is only plotted", f"{one[name]:.3g} billion on one core"),
        ],
        [figure("adam-8", caption="Figure 8", lines=lines, x="cores", y="billion connections per second")],
    )


def figure_9(trace: Result) -> Found:
    """Return updates per second by a parameter server, by form and number of servers."""
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
                "more than 13 billion updates per second, computed at the server",
                f"{by['factors'][1]:.3g} billion by one process, {most:.3g} at most",
            ),
            Claim(
                "deltas are limited by the network, and slow",
                f"{by['whole'][1]:.3g} billion by one process: factors give "
                f"{by['factors'][1] / by['whole'][1]:.0f} times as many",
            ),
        ],
        [figure("adam-9", "Figure 9", lines, x="server processes", y="billion updates per second", bottom=0)],
        note=(
            "The paper does not define an update; here k factors of a layer of M x N weights are k M N. "
            f"Measured with up to {max(measured)} server processes, simulated from one server beyond; the "
            "paper counts cores of one server."
        ),
    )


def figure_10(simulated: Result) -> Found:
    """Return the largest networks whose working sets fit the caches."""
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
                f"{most / 1e9:.0f} billion fit the caches; 36 would run at "
                f"{paper['billion_connections_per_second']:.0f} billion per second, "
                f"{100 * paper['waiting_for_messages']:.0f} % of it waiting",
            ),
            Claim("size grows faster than machines", f"{times(most / least)} on 16 machines"),
        ],
        [figure("adam-10", "Figure 10", lines, x="machines", y="billion connections", bottom=0)],
        note="No constant was fitted: the residual is the difference to 36 billion.",
    )


def figure_11(figures: Result) -> Found:
    """Return samples per second by replicas."""
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
        [figure("adam-11", "Figure 11", lines, x="replicas", y="samples per second", bottom=0)],
    )


def _measured(rows: Iterable[Result]) -> str:
    return ", ".join(
        f"{each['measured']:.0f} samples per second by {each['replicas']} (predicted "
        f"{each['predicted_here']:.0f})"
        for each in rows
        if each["predicted_here"] is not None
    )


def cluster(found: Result) -> Found:
    """Return the network of over 2 billion connections on 62 machines."""
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
        "Images\nper second",
        "Epochs in\nten days",
        "Days per\nepoch",
        "Servers\nbusy",
    ]
    best = found["clusters"][0]
    servers = found["image_servers"]
    return Found(
        [
            Claim(
                "ten days to convergence on 62 machines",
                f"{best['epochs_in_ten_days']:.0f} epochs of 7.5 million images in ten days; the paper "
                "does not state the number of epochs",
            ),
            Claim(
                "48 machines are 16 replicas of 4",
                "16 of 4 would be 64; 48 is 12 of 4 or 16 of 3; all three are simulated",
            ),
            Claim(
                "4 image servers keep them fed",
                f"each must send {servers['images_a_second_each']:.0f} images per second, "
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
    return f"{gain:.2f} times from {first['replicas']} to {last['replicas']}, which is 5.5 times as many"


def _speed(rows: list[Result]) -> Figure:
    lines = [
        Line("with servers", _of(rows, "replicas"), _of(rows, "images_a_second"), dots=True),
        Line("without", _of(rows, "replicas"), _of(rows, "without_servers"), 1, dashed=True),
    ]
    caption = "Figure 11 on the paper's machines: 20 parameter servers"
    return figure("adam-cluster", caption, lines, x="replicas of 4 machines", y="images per second", bottom=0)


def figure_12(found: Result) -> Found:
    """Return sizes of the network, and the time of an epoch of each."""
    rows = found["figure 12"]
    lines = [
        Line("", [each["billion_connections"] for each in rows], _of(rows, "days_to_an_epoch"), dots=True)
    ]
    return Found(
        [
            Claim(
                f"{each['billion_connections']:.2g} billion connections: {each['stated']}",
                f"{each['days_to_an_epoch']:.2f} days per epoch, {each['images_a_second']:.0f} images per "
                "second",
            )
            for each in rows
            if each["stated"]
        ],
        [figure("adam-12", "Time of an epoch", lines, x="billion connections", y="days an epoch", bottom=0)],
        note="Accuracies need ImageNet's 15 million images; only the cost of figure 12 is reproduced.",
    )


def standby(found: Result) -> Found:
    """Return the effect of standby machines at several rates of failure."""
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
                f"{pools['training']}, {pools['servers']} and {pools['images']} of them are standby machines",
            ),
            Claim(
                "machines did fail, and fault tolerance was exercised",
                f"at one failure per machine in {middle['days_between_failures']:.0f} days "
                f"{100 * middle['with_standby']:.2f} % of the speed is kept, "
                f"{100 * middle['without_standby']:.1f} % without standby machines",
            ),
        ],
        tables=[Table(head, rows)],
        note=found["standby"]["assumed"],
    )


def largest(found: Result) -> Found:
    """Return the largest network that this machine trains asynchronously."""
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
    head = ["Sends", "Weights", "Step", "Pushed\nper step", "Pulled\nper step", "Peak\nmemory"]
    return Found(
        [Claim("36 billion connections on 16 machines", found["summary"]["said"])],
        tables=[Table(head, rows)],
        note=found["summary"]["note"],
    )


def shared_memory(found: Result) -> Found:
    """Return lock-free processes compared with isolated processes."""
    ratio = found["ratio"]["processes that only compute"]
    return Found(
        [
            Claim(
                "parameters updated without locks scale",
                f"{found['processes']} processes on one copy: {ratio:.3f} of as many isolated processes, "
                f"{found['ratio']['torch.multiprocessing']:.2f} times PyTorch's own Hogwild",
            )
        ]
    )


def _of(rows: Iterable[Result], name: str) -> list[float]:
    return [each[name] for each in rows]


PAPER = Paper(
    "chilimbi2014",
    "Project Adam, reproduced",
    "Chilimbi, Suzue, Apacible and Kalyanaraman 2014: the paper's figures, and Cotswold's on this machine "
    "or predicted for the paper's machines.",
    (
        *ACCURACY,
        Part(
            "Section 3.1",
            "transforms of images",
            "measured",
            "Translation, rotation, affine and elastic transforms and crops of images in the "
            "shapes of MNIST and CIFAR-10, on one core, compared with SciPy.",
            "A small set of machines transforms data, to offload that from the training machines.",
            ("augment",),
            transforms,
        ),
        *FEEDING,
        Part(
            "Figure 8",
            "connections per second by cores",
            "measured",
            "Processes on one copy of the weights, without locks. The paper's count: connections times "
            "samples per second. Measured up to the number of cores of this machine.",
            "Excellent scaling with cores, super-linear up to 4.",
            ("adam-figures",),
            figure_8,
        ),
        Part(
            "Section 3.2.3",
            "lock-free updates inside a machine",
            "measured",
            "Processes that learn on one copy of the weights, compared with as many isolated processes.",
            "Weights are accessed and updated without locks.",
            ("hogwild",),
            shared_memory,
        ),
        Part(
            "Figure 9",
            "updates per second by a parameter server",
            "measured",
            "Recorded traffic of a run on MNIST, replayed at full speed against real servers, as deltas "
            "and as factors.",
            "More than 13 billion updates per second; deltas are limited by the network.",
            ("server-trace",),
            figure_9,
        ),
        Part(
            "Figure 10",
            "model size by machines",
            "simulated",
            "The largest networks whose convolutions' working sets fit the machines' caches, the paper's "
            "criterion.",
            "16 machines train a model of 36 billion connections; size grows faster than machines.",
            ("simulate",),
            figure_10,
        ),
        Part(
            "Figure 10, here",
            "the largest network that this machine trains asynchronously",
            "measured",
            "Two fully connected layers as large as the memory allows, trained by a replica and its "
            "servers for some steps.",
            "A model of 36 billion connections on 16 machines of 98 GB.",
            ("largest-async",),
            largest,
        ),
        Part(
            "Figure 11",
            "speed by replicas",
            "measured",
            "Replicas of the MNIST network and one server process; more replicas than cores are simulated "
            "event by event from the measured time of a step.",
            "4, 10, 12, 16 and 22 replicas scale well with 20 parameter servers.",
            ("adam-figures",),
            figure_11,
        ),
        Part(
            "Section 4.4.3",
            "the network of over 2 billion connections on 62 machines",
            "simulated",
            "Replicas that divide the network among machines, 10 parameter servers and 4 image servers, "
            "event by event.",
            "Ten days to convergence on 48 training machines, 10 parameter servers and 4 image servers.",
            ("adam-cluster",),
            cluster,
        ),
        Part(
            "Figure 12",
            "accuracy by size",
            "simulated",
            "The time of an epoch of each size on the same 62 machines.",
            "Larger models are more accurate: 1.1 billion connections 24 %, over 2 billion 29.8 %.",
            ("adam-cluster",),
            figure_12,
        ),
        Part(
            "Section 4.2",
            "standby machines",
            "simulated",
            "Random failures of the 62 machines for ten days, with the pools' standby machines and without.",
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
