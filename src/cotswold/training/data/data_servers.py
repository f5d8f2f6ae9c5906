"""The source of a run's training batches: its own process, or data servers.

Knows: the `[data]` section, how a pool is opened for a run, where ranks find it. Does not know: what is
trained, the protocol of servers.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

from cotswold.data import Store
from cotswold.data.loading.served_store import DatasetView, ServedStore, augmentation_to_json
from cotswold.dataservice.runtime.batch_tensors import window_bytes
from cotswold.dataservice.runtime.client import DataClient, request_settings
from cotswold.dataservice.runtime.feed import ServedFeed
from cotswold.dataservice.runtime.pool import PRELOADED, PoolSettings, settings_as_dict
from cotswold.errors import MachineError, UserError
from cotswold.geometry import Box
from cotswold.host import Call, ForkServer, Process, Token, raise_on_all, token_of
from cotswold.host.fork_server import END_SECONDS, ForkedProcess
from cotswold.host.process_info import await_descendants
from cotswold.host.token import VARIABLE, pool_token_of
from cotswold.recipe import Recipe
from cotswold.recipe.schema import SourcedData
from cotswold.recipe.schema.cluster import port_range
from cotswold.recipe.schema.fields import byte_count
from cotswold.training.data.augmentation import augmentation_of
from cotswold.training.data.remote import WINDOW, PoolLocation, missing_token_error
from cotswold.training.strategies.registry import TrainContext
from cotswold.transport.socket_folder import remove_stale_folders

WORK = "cotswold.training.data.data_servers:build_served_store"
_START_SECONDS = 60.0
"""Timeout in seconds until the head of a pool listens."""
_POLL_SECONDS = 0.01
_LOGS = "data-servers"
"""The folder of a run for the output of its data servers."""


def build_served_store(store: str, cache_bytes: int, augmentation_json: str) -> ServedStore:
    """Return the work of a data server: a store with a cache limit and an augmentation."""
    return ServedStore(Store(store), cache_bytes, augmentation_json)


def batch_source_of(
    context: TrainContext, augmentation_json: str, box: Box | None = None
) -> ServedFeed | None:
    """Return the batch source of a run with data servers; None if the run reads samples itself.

    ``augmentation_json`` and ``box``, a window (y, x) of each sample, are those of `DatasetView`; for an
    empty window no request is made. On a mesh all ranks call this, and each has a connection. Started
    processes and the connection end with the run. Raises UserError or MachineError if no pool is available.
    """
    if not context.recipe.is_served:
        return None
    data = context.recipe.data
    assert isinstance(data, SourcedData), "only sourced data has servers"
    store, things = context.store, context.exit_stack
    if context.rank_context.ranks.size > 1:
        place = _pool_for_ranks(context)
        if box is not None and not box.size:
            return None
        client = things.enter_context(place.connect(store.identity))
    elif isinstance(data.servers, str):
        client = things.enter_context(_existing_pool(context.recipe, data.servers).connect(store.identity))
    else:
        client = _start_servers(context, data.servers, byte_count(data.cache), augmentation_json)
    shape = store.shape
    sample_bytes = window_bytes((shape.channels, shape.height, shape.width))
    view = DatasetView("train", context.recipe.training.seed, box, augmentation_json, store.identity)
    return ServedFeed(
        client, view, sample_bytes if box is None else window_bytes((shape.channels, 1, box.size))
    )


def _pool_for_ranks(context: TrainContext) -> PoolLocation:
    """Return the location of the pool for all ranks; the main rank starts it if a number of servers is
    given.
    """
    rank_context, data = context.rank_context, context.recipe.data
    assert isinstance(data, SourcedData), "only sourced data has servers"
    place: PoolLocation | None = None
    with raise_on_all(rank_context.ranks, MachineError):
        if isinstance(data.servers, str):
            place = _existing_pool(context.recipe, data.servers)
        else:
            token = token_of(os.environ)
            if token is None:
                raise UserError(
                    f"ranks need a shared secret for data servers; set {VARIABLE} to 32 "
                    "or more random letters and digits"
                )
            if rank_context.local_size < rank_context.ranks.size:
                raise UserError(
                    "the ranks are on several hosts, but a run starts data servers on one host only; start a "
                    'pool and write data.servers = "HOST:PORT"'
                )
            if rank_context.is_main:
                place = pool_of(context, token, None)
    return PoolLocation.parsed(rank_context.ranks.gather(str(place))[0])


def check_pool(recipe: Recipe, store: Store | None = None) -> None:
    """Check an existing pool that a recipe names.

    Raises UserError for another token, store or augmentation than the recipe's, and MachineError if no pool
    answers.
    """
    data = recipe.data
    if isinstance(data, SourcedData) and isinstance(data.servers, str):
        with _existing_pool(recipe, data.servers).connect(store.identity if store else "") as client:
            terms = client.terms()
        view = (
            None
            if store is None
            else DatasetView("train", augmentation_json=augmentation_to_json(augmentation_of(recipe, store)))
        )
        if (
            view is not None
            and view.uses_custom_function
            and view.augmentation_json != terms.augmentation_json
        ):
            raise UserError(
                f"the data servers at {data.servers} were started with other transforms, and call a custom "
                "function only if they were started with it; start them with this recipe"
            )


def pool_of(context: TrainContext, token: Token, host: str | None) -> PoolLocation | None:
    """Return the location of the data servers in `[data]`; None if the processes of the run read samples
    themselves.

    If `[data]` gives a number, the servers are started here and end with the run. ``token`` is that
    of the processes; ``host`` is this machine's address for them, None if all are on this machine. Raises
    UserError or MachineError if no pool is available.
    """
    recipe, store = context.recipe, context.store
    data = recipe.data
    if not recipe.is_served:
        return None
    assert isinstance(data, SourcedData), "only sourced data has servers"
    if isinstance(data.servers, str):
        return _existing_pool(recipe, data.servers)
    cluster, logs = recipe.cluster, _logs_of(context)
    settings = PoolSettings(
        servers=data.servers,
        host=host,
        ports=None if host is None else port_range(cluster.ports),
        encrypt=cluster.encrypt,
        silent_seconds=cluster.heartbeat_timeout,
    )
    place = logs / "address"
    place.unlink(missing_ok=True)
    told = arguments_of(store, byte_count(data.cache), augmentation_to_json(augmentation_of(recipe, store)))
    things, process = head(settings, told, token, {}, logs, place)
    context.exit_stack.enter_context(things)
    deadline = time.monotonic() + _START_SECONDS
    while not place.exists():
        if process.code() is not None or time.monotonic() > deadline:
            raise MachineError(f"the head of the data servers {process.why()}; see {logs}")
        time.sleep(_POLL_SECONDS)
    return PoolLocation(
        place.read_text(), False, host, cluster.encrypt, _asking(recipe), _server_log_note(logs)
    )


def pool_argument(pool: PoolLocation | None) -> dict[str, object]:
    """Return the pool as an argument of a work."""
    return {} if pool is None else {"pool": str(pool)}


def arguments_of(store: Store, cache_bytes: int, augmentation_json: str) -> dict[str, object]:
    """Return the arguments of `build_served_store`."""
    return {
        "store": str(store.path.absolute()),
        "cache_bytes": cache_bytes,
        "augmentation_json": augmentation_json,
    }


def _logs_of(context: TrainContext) -> Path:
    logs = context.run.path / _LOGS
    logs.mkdir(exist_ok=True)
    return logs


def _server_log_note(logs: Path) -> str:
    """Return the name of a run's servers in errors."""
    return f"the data servers of the run (their output is in {logs})"


def _asking(recipe: Recipe) -> float:
    return 3.0 * recipe.cluster.heartbeat_timeout


def _existing_pool(recipe: Recipe, address: str) -> PoolLocation:
    """Return the location of an existing pool; raises UserError if there is no token for it."""
    if pool_token_of(os.environ) is None:
        raise missing_token_error(address)
    return PoolLocation(address, True, timeout_seconds=_asking(recipe))


def _start_servers(
    context: TrainContext, servers: int, cache_bytes: int, augmentation_json: str
) -> DataClient:
    """Start data servers for this run, and return the connection to them."""
    things, store = context.exit_stack, context.store
    token = token_of(os.environ) or Token.new()
    asking = request_settings(WINDOW, _asking(context.recipe))
    logs = _logs_of(context)
    client = things.enter_context(
        DataClient(token, store=store.identity, request_settings=asking, pool_text=_server_log_note(logs))
    )
    opened, _ = head(
        PoolSettings(servers=servers, silent_seconds=context.recipe.cluster.heartbeat_timeout),
        arguments_of(store, cache_bytes, augmentation_json),
        token,
        {client.name: client.address},
        logs,
    )
    things.enter_context(opened)
    return client


def head(
    settings: PoolSettings,
    arguments: dict[str, object],
    token: Token,
    trainers: dict[str, str],
    logs: Path | None = None,
    place: Path | None = None,
) -> tuple[ExitStack, Process]:
    """Start the head of a pool in a separate process.

    The head starts the servers, connects to ``trainers``, and writes its address into the file ``place``.
    Closing the returned stack ends all of them. Raises MachineError if no process can be started.
    """
    with ExitStack() as opened:
        processes = ForkServer(
            (*PRELOADED, "cotswold.dataservice.runtime.pool_process", "cotswold.training.data.data_servers")
        )
        opened.callback(remove_stale_folders)  # the head and its servers are killed, so they cannot clean up
        opened.callback(processes.close)
        told = {
            "trainers": trainers,
            "settings": settings_as_dict(settings),
            "work": WORK,
            "arguments": arguments,
            "logs": None if logs is None else str(logs),
            "place": None if place is None else str(place),
        }
        output = None if logs is None else logs / "head.log"
        process = processes.start(
            Call(
                "data-head",
                "cotswold.dataservice.runtime.pool_process:main",
                told,
                {VARIABLE: token.text},
                output,
            )
        )
        opened.callback(_end_head, process)
        return opened.pop_all(), process


def _end_head(process: ForkedProcess) -> None:
    """Kill a head, and wait for the ends of its servers, whose folders can be removed only then."""
    with await_descendants(process.pid, END_SECONDS):
        process.end()
