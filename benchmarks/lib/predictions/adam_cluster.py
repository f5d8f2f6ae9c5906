"""Simulation of the paper's 62 machines: replicas and servers event by event, and failures of machines.

Knows: which figures are the paper's and which are assumed. Does not know: the command, pages.

A replica pushes once per PUSH_IMAGES images: the changes of its convolutions, and the activations and error
terms of its full layers. It pulls all weights as often. One of a server's two cards carries this traffic, the
other the changes to two secondaries.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from functools import cached_property
from statistics import mean

from cotswold.bench.measure import Document, rounded
from cotswold.geometry import Grid
from cotswold.simulate import Cluster, load_cluster, predict
from cotswold.simulate.workloads.layers import LayerWork
from cotswold.simulate.workloads.papers import adam
from lib.downpour.scaling import simulated_speed

THREADS = 16
"""Threads of a machine, each with its own image (section 3.2.1)."""
PUSH_IMAGES = 256
"""Images per push; section 3.3 says hundreds."""
EPOCH_IMAGES = 7_500_000
"""Half of ImageNet's 15 million images (section 4.1)."""
IMAGE_BYTES = 256 * 256 * 3
SERVERS, IMAGE_SERVERS, DAYS, DAY = 10, 4, 10, 86_400
REPLICAS = {"12 of 4 machines": (12, 4), "16 of 3 machines": (16, 3), "16 of 4 machines": (16, 4)}
"""Replicas and machines per replica. The paper has 48 training machines and 16 replicas of 4, which are 64.
"""
FIGURE_11 = (4, 10, 12, 16, 22)
FIGURE_11_SERVERS = 20
SIZES = {0.3e9: "", 0.6e9: "", 1.1e9: "24 %", None: "29.8 %", 4e9: ""}
"""Connections, with the accuracy that the paper states; None is its network as described."""
POOLS = {"training": (90, 48), "servers": (20, 10), "images": (10, 4)}
"""Machines of each pool, with the number at work."""
FAILURES_DAYS = (30.0, 100.0, 365.0)
"""Mean days between failures of a machine; the paper gives no rate."""
SILENCE_SECONDS, START_SECONDS, REPAIR_SECONDS = 10.0, 60.0, DAY
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Work:
    """A network on a replica of some machines, and the costs of its pushes."""

    cluster: Cluster
    times: float
    machines: int

    @cached_property
    def network(self) -> LayerWork:
        """The network with as many images as a machine has threads."""
        return adam(self.times, THREADS)

    @cached_property
    def step_seconds(self) -> float:
        """Seconds to compute the images of one push."""
        one = predict(self.cluster, self.network, Grid(1, self.machines)).seconds
        return one * PUSH_IMAGES / THREADS

    @property
    def shared_weights(self) -> int:
        """Weights of convolutions, whose changes are added up."""
        return sum(each.weights for each in self.network.layers if each.kind == "shared")

    @property
    def full_weights(self) -> int:
        """Weights of full layers, which are sent as factors."""
        return sum(each.weights for each in self.network.layers if each.kind == "full")

    def push_bytes(self, servers: int) -> float:
        """Return the bytes of one push to all servers together.

        A layer's rows are spread over all servers, so each receives all activations.
        """
        full = [each for each in self.network.layers if each.kind == "full"]
        factors = sum(each.input.size * servers + each.output.size for each in full)
        return FLOAT_BYTES * float(self.shared_weights + PUSH_IMAGES * factors)

    @property
    def pull_bytes(self) -> float:
        """Bytes of a pull of all weights."""
        return FLOAT_BYTES * float(self.shared_weights + self.full_weights)

    def server_seconds(self, servers: int) -> float:
        """Return a server's time for a push and a pull: the maximum of cards and memory plus products."""
        device, network = self.cluster.device, self.cluster.network
        assert network is not None, "machines are joined"
        link = network.gbits * 1e9 / 8 * servers
        secondaries = 2 * FLOAT_BYTES * (self.shared_weights + self.full_weights)
        touched = 3 * FLOAT_BYTES * (self.shared_weights + self.full_weights)
        product = 2 * PUSH_IMAGES * self.full_weights / (device.peak_gflops * 1e9 * servers)
        memory = touched / (device.bandwidth * 1e9 * servers)
        return max(
            self.push_bytes(servers) / link, self.pull_bytes / link, secondaries / link, product + memory
        )

    def images_a_second(self, replicas: int, servers: int) -> float:
        """Return images per second of all replicas, event by event."""
        return simulated_speed(replicas, PUSH_IMAGES, self.step_seconds, self.server_seconds(servers))


def simulated(lives: int) -> Document:
    """Return all simulated results."""
    cluster = load_cluster("adam2014")
    whole = Work(cluster, 1.0, 4)
    clusters = [
        _row(name, Work(cluster, 1.0, machines), count) for name, (count, machines) in REPLICAS.items()
    ]
    fed = max(float(str(each["images_a_second"])) for each in clusters) / IMAGE_SERVERS
    return {
        "connections": whole.network.connections,
        "clusters": clusters,
        "image_servers": {
            "images_a_second_each": rounded(fed),
            "megabytes_a_second_each": rounded(fed * IMAGE_BYTES / 1e6),
            "of_a_link": rounded(fed * IMAGE_BYTES / 1.25e9),
        },
        "replicas": [_figure_11(whole, count) for count in FIGURE_11],
        "figure 12": [_figure_12(cluster, size, stated) for size, stated in SIZES.items()],
        "standby": _standby(whole, lives),
        "assumed": (
            f"The paper states neither the images per push (hundreds; {PUSH_IMAGES} here), nor how often "
            "weights are pulled (as often here), nor the epochs. Devices have 80 % of their data sheet's "
            "rate, as in figure 10. So the difference to ten days lies in the number of epochs, which is "
            "not stated."
        ),
    }


def _row(name: str, work: Work, replicas: int) -> Document:
    speed = work.images_a_second(replicas, SERVERS)
    return {
        "replicas": name,
        "machines": replicas * work.machines + SERVERS + IMAGE_SERVERS,
        "images_a_second": rounded(speed),
        "billion_connections_a_second": rounded(speed * work.network.connections / 1e9),
        "epochs_in_ten_days": rounded(speed * DAYS * DAY / EPOCH_IMAGES),
        "days_to_an_epoch": rounded(EPOCH_IMAGES / speed / DAY),
        "step_seconds": rounded(work.step_seconds),
        "push_megabytes": rounded(work.push_bytes(SERVERS) / 1e6),
        "pull_megabytes": rounded(work.pull_bytes / 1e6),
        "servers_busy": rounded(speed / PUSH_IMAGES * work.server_seconds(SERVERS)),
    }


def _figure_11(work: Work, replicas: int) -> Document:
    return {
        "replicas": replicas,
        "images_a_second": rounded(work.images_a_second(replicas, FIGURE_11_SERVERS)),
        "without_servers": rounded(replicas * PUSH_IMAGES / work.step_seconds),
    }


def _figure_12(cluster: Cluster, size: float | None, stated: str) -> Document:
    work = Work(cluster, 1.0 if size is None else _times(size), 4)
    speed = work.images_a_second(12, SERVERS)
    return {
        "billion_connections": rounded(work.network.connections / 1e9),
        "stated": stated,
        "images_a_second": rounded(speed),
        "days_to_an_epoch": rounded(EPOCH_IMAGES / speed / DAY),
    }


def _times(connections: float) -> float:
    """Return the factor of maps that gives this number of connections, in hundredths."""
    return min(range(5, 400), key=lambda each: abs(adam(each / 100, 1).connections - connections)) / 100


def _standby(work: Work, lives: int) -> Document:
    """Simulate ten days of 12 replicas of 4 machines, with random failures."""
    again = SILENCE_SECONDS + START_SECONDS + work.pull_bytes / 1.25e9
    copied = work.pull_bytes / SERVERS / 1.25e9 + SILENCE_SECONDS
    found: list[Document] = []
    for days in FAILURES_DAYS:
        kept = {
            spare: mean(
                kept_part(
                    random.Random(seed), (12, 4), spare, days * DAY, (again, REPAIR_SECONDS), DAYS * DAY
                )
                for seed in range(lives)
            )
            for spare in (POOLS["training"][0] - POOLS["training"][1], 0)
        }
        failures = sum(at_work for _, at_work in POOLS.values()) * DAYS / days
        both = (SERVERS - 1) * (SERVERS - 2) / 2 * (copied / (days * DAY)) ** 2
        with_standby, without = kept.values()
        found.append(
            {
                "days_between_failures": days,
                "failures": rounded(failures),
                "with_standby": rounded(with_standby),
                "without_standby": rounded(without),
                "shards_lost": rounded(SERVERS * DAYS / days * both),
            }
        )
    return {
        "rows": found,
        "pools": {name: whole - at_work for name, (whole, at_work) in POOLS.items()},
        "seconds_to_take_over": rounded(again),
        "assumed": (
            f"A failure is detected after {SILENCE_SECONDS:.0f} s, a standby machine starts in "
            f"{START_SECONDS:.0f} s and pulls its weights; a machine is repaired after a day. A replica "
            "stops without one of its machines. The paper gives neither rates of failure nor these times. "
            "A shard is lost if all three copies fail before a fourth is made."
        ),
    }


def kept_part(
    draw: random.Random,
    replicas: tuple[int, int],
    spare: int,
    between_seconds: float,
    back_seconds: tuple[float, float],
    seconds: float,
) -> float:
    """Return the fraction of time for which replicas run, as a mean over ``replicas`` (number, machines of
    each).

    Machines fail after exponential times with mean ``between_seconds``. A spare machine replaces a failed one
    after the first of ``back_seconds``. A failed machine is repaired after the second; without a spare, it
    then resumes its own work.
    """
    count, machines = replicas
    take_over, repair = back_seconds
    events: list[tuple[float, int, str]] = [
        (draw.expovariate(1 / between_seconds), place, "fails") for place in range(count * machines)
    ]
    heapq.heapify(events)
    missing = [0] * count
    waiting: list[int] = []
    lost, last = 0.0, 0.0
    while events and events[0][0] < seconds:
        now, place, what = heapq.heappop(events)
        lost += (now - last) * sum(each > 0 for each in missing)
        last = now
        if what == "fails":
            missing[place // machines] += 1
            heapq.heappush(events, (now + repair, place, "repaired"))
            if spare:
                spare -= 1
                heapq.heappush(events, (now + take_over, place, "back"))
            else:
                waiting.append(place)
        elif what == "repaired" and not waiting:
            spare += 1
        else:
            own = waiting.pop(0) if what == "repaired" else place
            missing[own // machines] -= 1
            heapq.heappush(events, (now + draw.expovariate(1 / between_seconds), own, "fails"))
    lost += (seconds - last) * sum(each > 0 for each in missing)
    return 1 - lost / (seconds * count)
