"""The work of a replica that is a gang: the mean loss of a batch by a network that is cut over several ranks.

Knows: recipes, what the first rank of a gang tells the others. Does not know: what a rank does in a step
(`gang_steps`), servers' states, how ranks are started (`launch.gang`).

The first rank has the replica's place among the others: its session, its samples, when it pulls and pushes.
What is pulled and pushed each rank has by itself, over an endpoint of its own (`replicas.rank_process`).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from cotswold import recipe as recipes
from cotswold.data import Store
from cotswold.geometry import Grid
from cotswold.host import Process, Token, inherited, token_of
from cotswold.launch import Led, follow, lead
from cotswold.paramserver.core.rank_fanout import rank_name
from cotswold.paramserver.core.replica_session import StepTask
from cotswold.processes.endpoint_settings import Reach, own_endpoint
from cotswold.recipe.schema import DownpourTraining, Mesh
from cotswold.replicas.accumulation import OwnSteps
from cotswold.replicas.rank_process import RankRole
from cotswold.replicas.work import Meeting
from cotswold.shards.runtime.work import PortionSum, Slot
from cotswold.training.async_sgd.push_format import scale_to_norm_1
from cotswold.training.data.indexed import Patterns
from cotswold.training.data.remote import patterns_of
from cotswold.training.data.varying import varying_of
from cotswold.training.flat_parameters import FlatModule
from cotswold.training.full_batch.objective import LayerWork
from cotswold.training.jobs.restore import supervised_network
from cotswold.training.losses import Loss, loss_of
from cotswold.training.model_parallel.full_batch_worker import TOKEN, Rank
from cotswold.training.model_parallel.shards import parts_of_shards
from cotswold.training.model_parallel.steps import Closing, RankSteps, Told
from cotswold.training.models import LayerNetwork
from cotswold.wire import Shard
from cotswold.wire.messenger import Messenger


class LearningLayers(LayerWork):
    """Layers under a loss as they learn: dropout draws."""

    def __init__(self, network: LayerNetwork, loss: Loss, samples: Patterns) -> None:
        self.flat = FlatModule(network.train())
        self._loss, self._samples, self._held = loss, samples, None


class GangReplica:
    """The first rank's work: `RankedWork`."""

    def __init__(self, rank: Rank, led: Led, decay: float) -> None:
        """``decay``: this times a weight is added to its gradient."""
        self._rank, self._led, self._decay = rank, led, decay
        self._leading = threading.Lock()
        """Held while the others are told something, and do it."""
        self.coming: Sequence[Sequence[int]] = ()
        """The samples of the steps after the next, as far as they are known."""
        self._owing: Sequence[Process] = ()

    @property
    def parameters(self) -> Tensor:
        """Those with which it was made, one vector, whole."""
        return self._rank.whole.parameters

    @property
    def layout(self) -> Sequence[Slot]:
        """The parameters in the vector, as one process has them."""
        return self._rank.whole.layout

    @property
    def patterns(self) -> int:
        """How many samples there are."""
        return self._rank.whole.patterns

    @property
    def varies(self) -> bool:
        """Whether a sample is another one in each epoch."""
        return self._rank.whole.varies

    @property
    def flops(self) -> tuple[int, int]:
        """Of one sample, as one process counts them."""
        return self._rank.whole.flops

    @property
    def is_fed(self) -> bool:
        """Whether data servers make the samples."""
        return self._rank.whole.is_fed

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """As `FedWork.expect`; the other ranks hear of it with the step."""
        self.coming = batches[1:]

    @property
    def is_starved(self) -> bool:
        """Whether this rank waits for samples now."""
        return self._rank.whole.is_starved

    @property
    def processes(self) -> Sequence[Process]:
        """Those of the other ranks."""
        return self._led.processes

    @property
    def owing(self) -> Sequence[Process]:
        """All of them while a step is under way: in it they wait for each other."""
        return self._owing

    @property
    def is_awaiting(self) -> bool:
        """Whether this rank only waits: it takes part in each step to its end."""
        return False

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self._rank.size

    def meet(self, meeting: Meeting) -> GangSteps:
        """Tell the others where their replica is; the steps that all take together."""
        self._led.ranks.gather(asdict(meeting))
        own = cast(OwnSteps, meeting.own)  # as it was made of them
        return GangSteps(self, RankSteps(self._rank, self._decay, own, meeting.push_samples))

    def rank_of(self, shards: Sequence[Shard]) -> Mapping[int, int]:
        """The rank that pulls and pushes each shard."""
        parts = parts_of_shards(self._rank.shapes, self._rank.every_box, shards)
        return {number: each.rank for number, each in parts.items()}

    @contextmanager
    def together(self, said: Told) -> Iterator[None]:
        """Have the others take a step that this process takes meanwhile, in another thread than the main
        one."""
        try:
            with self._leading:
                self._owing = self._led.processes
                _tell(self._rank, said)
                yield
                self._owing = ()
        except Exception as error:
            self._led.give_way(error)
            raise

    def close(self) -> None:
        """Let the other ranks go."""
        with self._leading:
            _tell(self._rank, None)


class GangSteps:
    """What the first rank's replica asks of all: `Steps`."""

    def __init__(self, gang: GangReplica, steps: RankSteps) -> None:
        self._gang, self._steps = gang, steps
        self._shards: tuple[Shard, ...] = ()
        self._told: tuple[Shard, ...] = ()
        """What the others have heard of."""
        self._task: StepTask | None = None
        self._closing: Closing | None = None

    def lay(self, shards: Sequence[Shard]) -> None:
        """The servers have these; may be said by another thread than that which takes steps."""
        self._shards = tuple(shards)

    def begin(self, task: StepTask) -> None:
        """The step that is taken next."""
        self._task = task

    def step(self, samples: Sequence[int], rate: float, opens: bool) -> PortionSum:
        """Put what was pulled in its place, and take a step, on all ranks."""
        task, shards = self._task, self._shards
        assert task is not None, "it has begun"
        installs = {
            number: version
            for pulled in task.installs
            for number, version in zip(pulled.shards, pulled.versions, strict=True)
        }
        said = Told(
            None if shards is self._told else tuple(map(astuple, shards)),
            tuple(installs.items()),
            tuple(samples),
            rate,
            opens,
            task.closes,
            task.pull,
            task.behind,
            tuple(map(tuple, self._gang.coming)),
        )
        with self._gang.together(said):
            found, self._closing = self._steps.lead(said, task)
        self._told = shards
        return found

    def may_grow(self, samples: int) -> bool:
        """Whether a step may be added before it is closed: any."""
        return True

    def close(self) -> Closing:
        """What goes to each server from here; what other ranks push is `RemoteBuffers`."""
        assert self._closing is not None, "the task closed it"
        closing, self._closing = self._closing, None
        return closing


def _tell(rank: Rank, said: Told | None) -> None:
    """To all others; None lets them go."""
    words = bytearray(json.dumps(None if said is None else asdict(said)).encode())
    dist.broadcast(torch.tensor([len(words)]), 0, group=rank.wire)
    dist.broadcast(torch.frombuffer(words, dtype=torch.uint8), 0, group=rank.wire)


def _heard(rank: Rank) -> Told | None:
    length = torch.zeros(1, dtype=torch.int64)
    dist.broadcast(length, 0, group=rank.wire)
    words = torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(words, 0, group=rank.wire)
    said: dict[str, Any] | None = json.loads(words.numpy().tobytes())
    return None if said is None else Told(**{**said, "pull": tuple(said["pull"])})


def obey(rank: Rank, steps: RankSteps, role: RankRole) -> None:
    """What a rank does that is not the first: as it is told, until it is let go."""
    while (said := _heard(rank)) is not None:
        steps.obey(said, role.take, role.closed)


@contextmanager
def in_gang_replica(recipe: str, store: str, rows: str, pool: str | None = None) -> Iterator[GangReplica]:
    """As `learning_works.in_replica`, for a process that leads the ranks of the recipe's `[mesh]`."""
    mesh, training = _parsed(recipe)
    grid, arguments = (
        Grid.parse(str(mesh.grid)),
        {"recipe": recipe, "store": store, "rows": rows, "pool": pool},
    )
    given = {TOKEN: token_of(os.environ)}
    with lead(
        f"{__name__}:follow_replica", arguments, grid.size, given=given, timeout_seconds=mesh.timeout
    ) as led:
        rank = Rank(_learning(recipe, store, rows, pool), grid, led.ranks, mesh.in_flight)
        work = GangReplica(rank, led, training.weight_decay)
        yield work
        work.close()


def follow_replica(recipe: str, store: str, rows: str, pool: str | None, place: Mapping[str, object]) -> None:
    """The life of another rank than the first of `in_gang_replica`."""
    mesh, training = _parsed(recipe)
    token = cast(Token | None, inherited(TOKEN))  # as given
    with follow(place) as ranks:
        whole = _learning(recipe, store, rows, pool, token)
        rank = Rank(whole, Grid.parse(str(mesh.grid)), ranks, mesh.in_flight)
        meeting = Meeting(**ranks.gather(None)[0])
        own = cast(OwnSteps, meeting.own)  # as it was made of them
        steps = RankSteps(rank, training.weight_decay, own, meeting.push_samples)
        reach = Reach(**cast(Mapping[str, Any], meeting.reach))
        with own_endpoint(rank_name(meeting.name, rank.number), reach, token) as endpoint:
            role = RankRole(Messenger(endpoint), meeting)
            role.run(lambda: obey(rank, steps, role))


def _parsed(recipe: str) -> tuple[Mesh, DownpourTraining]:
    parsed = recipes.parse(recipe)
    assert isinstance(parsed.training, DownpourTraining), "others have no replicas"
    assert parsed.mesh.grid is not None, "a gang has a grid"
    return parsed.mesh, parsed.training


def _learning(
    recipe: str, store: str, rows: str, pool: str | None, token: Token | None = None
) -> LearningLayers:
    torch.set_num_threads(1)
    parsed, opened = recipes.parse(recipe), Store(store)
    network = supervised_network(parsed, opened.outputs)
    assert isinstance(parsed.training, DownpourTraining), "others have no replicas"
    if parsed.training.unit_norm:
        scale_to_norm_1(network)
    varying = varying_of(parsed, opened)
    samples = patterns_of(opened, varying, parsed.training.seed, rows, pool, token)
    return LearningLayers(network, loss_of(parsed), samples)
