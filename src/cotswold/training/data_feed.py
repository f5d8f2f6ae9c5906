"""Where a run's training batches are made: in its own process, or by data servers.

Knows: what `[data]` asks for, how a pool is opened for a run, where ranks find it. Does not know: what is
learnt, how servers are asked.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from cotswold.cluster.client import address_of
from cotswold.cluster.data_pool import PRELOADED, PoolSettings, described
from cotswold.cluster.feeding import DataClient, ServedFeed, asking_of, window_bytes
from cotswold.cluster.roles.own_host import own_host
from cotswold.cluster.transport.address import Address
from cotswold.data import Store
from cotswold.data.serving import ServedStore, View
from cotswold.errors import UserError
from cotswold.host import Call, ForkServer, Token, token_of
from cotswold.host.token import VARIABLE
from cotswold.recipe import Recipe
from cotswold.recipe.schema import SourcedData
from cotswold.recipe.schema.data import server_place
from cotswold.recipe.schema.fields import byte_count
from cotswold.training.table import Setting

WORK = "cotswold.training.data_feed:in_data_server"
_WINDOW = 8
"""Batches that are asked ahead."""
_LOGS = "data-servers"
"""The folder of a run to which they print."""


def in_data_server(store: str, cache_bytes: int, varying: str) -> ServedStore:
    """The work of a data server: the path of a store, the bound of its cache, how samples are varied."""
    return ServedStore(Store(store), cache_bytes, varying)


def feed_of(setting: Setting, varying: str) -> ServedFeed | None:
    """The feed of a run whose `[data]` asks for data servers; None where it reads for itself.

    ``varying``: how samples are varied, as a `View` has it.

    Started processes, and the connection, end with the setting. Raises UserError or MachineError
    where there are none.
    """
    data = setting.recipe.data
    if not isinstance(data, SourcedData) or not data.servers:
        return None
    if setting.team.mesh is not None:
        raise UserError(
            "ranks that cut the network read for themselves; set data.servers to 0, or train in one process "
            "(mesh.grid none)"
        )
    store, things = setting.store, setting.open_things
    if isinstance(data.servers, str):
        client = things.enter_context(_joined(data.servers, store))
    else:
        client = _started(setting, data.servers, byte_count(data.cache), varying)
    shape = store.shape
    view = View("train", setting.recipe.training.seed, None, varying)
    return ServedFeed(client, view, window_bytes((shape.channels, shape.height, shape.width)))


def _asking(recipe: Recipe) -> float:
    return 3.0 * recipe.cluster.silence


def _joined(address: str, store: Store) -> DataClient:
    """A connection to a pool that somebody has started."""
    host, port = server_place(address)
    found = address_of(host)
    token = token_of(os.environ)
    if token is None:
        raise UserError(
            f"the data servers at {address} have a token; set {VARIABLE} to what they were started with"
        )
    return DataClient(
        token,
        str(Address.at_port(found, port)),
        store=store.identity,
        host=own_host(found),
        asking=asking_of(_WINDOW, 30.0),
        where=f"the data servers at {address}",
    )


def _started(setting: Setting, servers: int, cache_bytes: int, varying: str) -> DataClient:
    """Data servers of this run, and the connection to them."""
    things, store = setting.open_things, setting.store
    token = token_of(os.environ) or Token.new()
    asking = asking_of(_WINDOW, _asking(setting.recipe))
    client = things.enter_context(DataClient(token, store=store.identity, asking=asking))
    logs = setting.run.path / _LOGS
    logs.mkdir(exist_ok=True)
    things.enter_context(
        head(
            PoolSettings(servers=servers, silent_seconds=setting.recipe.cluster.silence),
            {"store": str(store.path.absolute()), "cache_bytes": cache_bytes, "varying": varying},
            token,
            {client.name: client.own_address},
            logs,
        )
    )
    return client


def head(
    settings: PoolSettings,
    arguments: dict[str, object],
    token: Token,
    trainers: dict[str, str],
    logs: Path | None = None,
) -> ExitStack:
    """The head of a pool in a process of its own, which starts the servers and calls ``trainers``; all end
    with what is returned. Raises MachineError where no process can be started."""
    with ExitStack() as opened:
        processes = ForkServer(
            (*PRELOADED, "cotswold.cluster.roles.data_head", "cotswold.training.data_feed")
        )
        opened.callback(processes.close)
        told = {
            "trainers": trainers,
            "settings": described(settings),
            "work": WORK,
            "arguments": arguments,
            "logs": None if logs is None else str(logs),
        }
        output = None if logs is None else logs / "head.log"
        process = processes.start(
            Call("data-head", "cotswold.cluster.roles.data_head:main", told, {VARIABLE: token.text}, output)
        )
        opened.callback(process.end)
        return opened.pop_all()
