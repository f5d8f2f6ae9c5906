"""The model-parallel replica: the mean loss of a batch by a network partitioned over several ranks.

Knows: recipes, the leader's commands to the followers. Does not know: a rank's part of a step (`steps`),
servers' states, how ranks are started (`launch.forked_group`).

The first rank leads: it has the replica's session and samples, and decides when to pull and push. Each rank
pulls and pushes its shards itself, over its own endpoint (`replicas.rank_process`).
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
from cotswold.launch import LeaderGroup, follow, lead
from cotswold.paramserver.core.rank_fanout import rank_name
from cotswold.paramserver.core.replica_session import StepTask
from cotswold.processes.endpoint_settings import EndpointSettings, open_endpoint
from cotswold.recipe.schema import DownpourTraining, Mesh
from cotswold.replicas.accumulation import OwnSteps
from cotswold.replicas.rank_process import RankProcess
from cotswold.replicas.work import RankedWork, ReplicaEndpoint
from cotswold.shards.runtime.work import PortionSum, TensorSlot
from cotswold.training.async_sgd.push_format import scale_to_norm_1
from cotswold.training.data.augmentation import augmentation_of
from cotswold.training.data.indexed import IndexedSamples
from cotswold.training.data.remote import worker_samples
from cotswold.training.flat_parameters import FlatParameters
from cotswold.training.full_batch.objective import LayerObjective
from cotswold.training.jobs.restore import supervised_network
from cotswold.training.losses import Loss, loss_of
from cotswold.training.model_parallel.full_batch_worker import TOKEN, Rank
from cotswold.training.model_parallel.shards import parts_of_shards
from cotswold.training.model_parallel.steps import PushResult, RankSteps, StepMessage
from cotswold.training.models import LayerNetwork
from cotswold.wire import Shard
from cotswold.wire.messenger import Messenger


class ReplicaLayers(LayerObjective):
    """Layers with a loss in training mode, with dropout."""

    def __init__(self, network: LayerNetwork, loss: Loss, samples: IndexedSamples) -> None:
        self.flat = FlatParameters(network.train())
        self._loss, self._samples, self._held = loss, samples, None


class ModelParallelReplica(RankedWork):
    """The leader's task (`RankedWork`)."""

    def __init__(self, rank: Rank, group: LeaderGroup, decay: float) -> None:
        """``decay`` times a weight is added to its gradient."""
        self._rank, self._followers, self._decay = rank, group, decay
        self._lead_lock = threading.Lock()
        """Held while the followers receive and execute a command."""
        self.next_samples: Sequence[Sequence[int]] = ()
        """The samples of the steps after the next, as far as they are known."""
        self._owing: Sequence[Process] = ()

    @property
    def parameters(self) -> Tensor:
        """The initial parameters, as one whole vector."""
        return self._rank.objective.parameters

    @property
    def layout(self) -> Sequence[TensorSlot]:
        """The parameters' positions in the vector, as in a single process."""
        return self._rank.objective.layout

    @property
    def samples(self) -> int:
        """The number of samples."""
        return self._rank.objective.samples

    @property
    def varies(self) -> bool:
        """True if samples are augmented differently in each epoch."""
        return self._rank.objective.varies

    @property
    def flops(self) -> tuple[int, int]:
        """FLOPs per sample of value alone, and of value and gradient, as a single process counts them."""
        return self._rank.objective.flops

    @property
    def is_fed(self) -> bool:
        """True if data servers make the samples."""
        return self._rank.objective.is_fed

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """Remember the next batches, as `FedWork.expect`; the followers receive them with the step."""
        self.next_samples = batches[1:]

    @property
    def is_starved(self) -> bool:
        """True while this rank waits for samples."""
        return self._rank.objective.is_starved

    @property
    def processes(self) -> Sequence[Process]:
        """The processes of the followers."""
        return self._followers.processes

    @property
    def owing(self) -> Sequence[Process]:
        """All followers while a step runs, because they wait for each other in it."""
        return self._owing

    @property
    def is_awaiting(self) -> bool:
        """False: the leader computes its part of each step."""
        return False

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self._rank.size

    def connect_ranks(self, leader: ReplicaEndpoint) -> ModelParallelSteps:
        """Send the followers their replica's address, and return the common steps."""
        self._followers.ranks.gather(asdict(leader))
        own = cast(OwnSteps, leader.local_steps)  # the leader's endpoint was made from these steps
        return ModelParallelSteps(self, RankSteps(self._rank, self._decay, own, leader.push_samples))

    def rank_of(self, shards: Sequence[Shard]) -> Mapping[int, int]:
        """Return the rank that pulls and pushes each shard."""
        parts = parts_of_shards(self._rank.shapes, self._rank.every_box, shards)
        return {number: each.rank for number, each in parts.items()}

    @contextmanager
    def concurrent_step(self, message: StepMessage) -> Iterator[None]:
        """Make the followers take a step while this process takes it in a thread other than the main one."""
        try:
            with self._lead_lock:
                self._owing = self._followers.processes
                _broadcast_step(self._rank, message)
                yield
                self._owing = ()
        except Exception as error:
            self._followers.await_rank_death(error)
            raise

    def close(self) -> None:
        """End the followers."""
        with self._lead_lock:
            _broadcast_step(self._rank, None)


class ModelParallelSteps:
    """The steps of all ranks, for the first rank's replica (`Steps`)."""

    def __init__(self, replica: ModelParallelReplica, steps: RankSteps) -> None:
        self._replica, self._steps = replica, steps
        self._shards: tuple[Shard, ...] = ()
        self._sent_shards: tuple[Shard, ...] = ()
        """The shards that the followers have received."""
        self._task: StepTask | None = None
        self._pending_push: PushResult | None = None

    def lay(self, shards: Sequence[Shard]) -> None:
        """Set the servers' shards; another thread than that of the steps may call it."""
        self._shards = tuple(shards)

    def begin(self, task: StepTask) -> None:
        """Set the task of the next step."""
        self._task = task

    def step(self, samples: Sequence[int], rate: float, opens: bool) -> PortionSum:
        """Install pulled values and take a step on all ranks."""
        task, shards = self._task, self._shards
        assert task is not None, "begin() comes first"
        installs = {
            number: version
            for pulled in task.installs
            for number, version in zip(pulled.shards, pulled.versions, strict=True)
        }
        said = StepMessage(
            None if shards is self._sent_shards else tuple(map(astuple, shards)),
            tuple(installs.items()),
            tuple(samples),
            rate,
            opens,
            task.closes,
            task.pull,
            task.missing_accumulations,
            tuple(map(tuple, self._replica.next_samples)),
        )
        with self._replica.concurrent_step(said):
            found, self._pending_push = self._steps.step_as_leader(said, task)
        self._sent_shards = shards
        return found

    def may_grow(self, samples: int) -> bool:
        """Return True: steps can always be added before the close."""
        return True

    def close(self) -> PushResult:
        """Return the push of this rank to each server; shards that other ranks push are `RemoteBuffers`."""
        assert self._pending_push is not None, "the task closed the accumulation"
        closing, self._pending_push = self._pending_push, None
        return closing


def _broadcast_step(rank: Rank, message: StepMessage | None) -> None:
    """Broadcast a step to the followers; None ends them."""
    words = bytearray(json.dumps(None if message is None else asdict(message)).encode())
    dist.broadcast(torch.tensor([len(words)]), 0, group=rank.wire)
    dist.broadcast(torch.frombuffer(words, dtype=torch.uint8), 0, group=rank.wire)


def _receive_step(rank: Rank) -> StepMessage | None:
    length = torch.zeros(1, dtype=torch.int64)
    dist.broadcast(length, 0, group=rank.wire)
    words = torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(words, 0, group=rank.wire)
    said: dict[str, Any] | None = json.loads(words.numpy().tobytes())
    return None if said is None else StepMessage(**{**said, "pull": tuple(said["pull"])})


def follower_loop(rank: Rank, steps: RankSteps, role: RankProcess) -> None:
    """Main loop of a follower: execute the leader's steps until the end."""
    while (said := _receive_step(rank)) is not None:
        steps.step_as_follower(said, role.take_newer, role.close_accumulation)


@contextmanager
def build_model_parallel_replica(
    recipe: str, store: str, rows: str, pool: str | None = None
) -> Iterator[ModelParallelReplica]:
    """Run a recipe's replica on the ranks of its `[mesh]`, in the leader."""
    mesh, training = _parsed(recipe)
    grid, arguments = (
        Grid.parse(str(mesh.grid)),
        {"recipe": recipe, "store": store, "rows": rows, "pool": pool},
    )
    given = {TOKEN: token_of(os.environ)}
    with lead(
        f"{__name__}:follow_replica", arguments, grid.size, given=given, timeout_seconds=mesh.timeout
    ) as led:
        rank = Rank(_learning(recipe, store, rows, pool), grid, led.ranks, mesh.microbatches)
        work = ModelParallelReplica(rank, led, training.weight_decay)
        yield work
        work.close()


def follow_replica(recipe: str, store: str, rows: str, pool: str | None, place: Mapping[str, object]) -> None:
    """Run a follower of `build_model_parallel_replica`."""
    mesh, training = _parsed(recipe)
    token = cast(Token | None, inherited(TOKEN))  # as the leader gave it
    with follow(place) as ranks:
        whole = _learning(recipe, store, rows, pool, token)
        rank = Rank(whole, Grid.parse(str(mesh.grid)), ranks, mesh.microbatches)
        meeting = ReplicaEndpoint(**ranks.gather(None)[0])
        own = cast(OwnSteps, meeting.local_steps)  # the meeting was made from these steps
        steps = RankSteps(rank, training.weight_decay, own, meeting.push_samples)
        reach = EndpointSettings(**cast(Mapping[str, Any], meeting.endpoint_settings))
        with open_endpoint(rank_name(meeting.name, rank.number), reach, token) as endpoint:
            role = RankProcess(Messenger(endpoint), meeting)
            role.run(lambda: follower_loop(rank, steps, role))


def _parsed(recipe: str) -> tuple[Mesh, DownpourTraining]:
    parsed = recipes.parse(recipe)
    assert isinstance(parsed.training, DownpourTraining), "only strategy downpour has replicas"
    assert parsed.mesh.grid is not None, "model-parallel replicas have a grid"
    return parsed.mesh, parsed.training


def _learning(
    recipe: str, store: str, rows: str, pool: str | None, token: Token | None = None
) -> ReplicaLayers:
    torch.set_num_threads(1)
    parsed, opened = recipes.parse(recipe), Store(store)
    network = supervised_network(parsed, opened.outputs)
    assert isinstance(parsed.training, DownpourTraining), "only strategy downpour has replicas"
    if parsed.training.unit_norm:
        scale_to_norm_1(network)
    augmentation = augmentation_of(parsed, opened)
    samples = worker_samples(opened, augmentation, parsed.training.seed, rows, pool, token)
    return ReplicaLayers(network, loss_of(parsed), samples)
