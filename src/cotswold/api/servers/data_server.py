"""Data servers for runs and user-defined training loops, from Python: `serve_data`.

Knows: stores, recipes, a serving thread, rates. Does not know: commands, messages, trainers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.request import override_list, recipe_name
from cotswold.api.servers.background import BackgroundService
from cotswold.api.servers.data_server_status import ServedDataStatus, WorkTotals
from cotswold.api.servers.parameter_client import secret_of, split_address
from cotswold.api.servers.parameter_server import own_secret
from cotswold.errors import UserError
from cotswold.files import expanded
from cotswold.ui.display import display_for

if TYPE_CHECKING:
    from cotswold.data import Store
    from cotswold.dataservice.runtime.pool import DataPool, PoolSettings, PoolStatus, ServerLine
    from cotswold.dataservice.runtime.remote_servers import RemoteServers
    from cotswold.host import Token
    from cotswold.recipe import Recipe
    from cotswold.run.prometheus.exposition import MetricFamily

OnEvent = Callable[[str, Mapping[str, object]], None]
_LISTEN = "127.0.0.1:0"
_CACHE = "1 GB"
"""Cache size without a recipe."""
_PROCEED_SECONDS = 0.1
_RATE_SECONDS = 5.0
"""Seconds over which samples per second are averaged."""


def serve_data(
    source: str | Path | Store | Recipe,
    *,
    overrides: Mapping[str, object] | Sequence[str] = (),
    servers: int = 2,
    threads: int = 1,
    listen: str | None = None,
    cache: str | None = None,
    token: str | Path | Token | None = None,
    join: str | None = None,
    ports: tuple[int, int] | None = None,
    encrypt: bool = True,
    metrics: str | int | None = None,
    stores: str | Path = "stores",
    progress: bool | None = None,
    on_event: OnEvent = lambda kind, more: None,
) -> ServedData:
    """Serve batches of a store's samples to runs and loops.

    Runs connect by ``[data] servers = "HOST:PORT"`` in their recipe, loops by `cotswold.data.connect`. Use
    the result in a ``with`` statement.

    With ``join``, the servers join an existing pool with the same samples. Trainers connect to that pool, and
    the service ends with it.

    Args:
        source: A store, its folder, or a recipe, which is prepared if necessary and determines the
            augmentation.
        overrides: Changed fields of the recipe.
        servers: Number of server processes.
        threads: Threads of each process.
        listen: Address of this machine at which trainers reach the pool; port 0 selects a free one
            [127.0.0.1:0].
        cache: Maximum size of shards in memory, per server. [the recipe's ``data.cache``, or 1 GB]
        token: A secret, or the path of a file for it. [COTSWOLD_TOKEN, else a new secret]
        join: ``HOST:PORT`` of an existing pool. [none]
        ports: First and last port of the servers. [any]
        encrypt: Encrypt messages between hosts.
        metrics: Port of 127.0.0.1, or ``ADDRESS:PORT``, with metrics for Prometheus. [none]
        stores: Folder of prepared stores.
        progress: Show progress. [if on a terminal or in a notebook]
        on_event: Called with the kind and fields of each event.

    Returns:
        The running service.

    Raises:
        UserError: if an argument is invalid, or the pool has another token or other samples.
        StoreError: if the store is missing or damaged.
        SourceError: if the recipe's source cannot be read.
        RecipeError: if the recipe is invalid.
        MachineError: if processes cannot be started, the port is in use, or no pool answers at ``join``.
    """
    from cotswold.dataservice.runtime.pool import PoolSettings
    from cotswold.recipe.schema.cluster import metrics_place
    from cotswold.transport.host_names import local_address_of

    try:
        scraped = metrics_place(None if metrics is None else str(metrics))
    except ValueError as error:
        raise UserError(f"metrics: {error}") from error
    if join is not None and listen is not None:
        raise UserError(
            "listen and join exclude each other: trainers connect to the joined pool; give one of them"
        )
    if join is not None:
        settings = PoolSettings(servers=servers, threads=threads, ports=ports, encrypt=encrypt)
        head = split_address(join)
        secret = secret_of(token)
        return ServedData(
            settings,
            _open_samples(source, overrides, Path(stores), cache, progress),
            secret,
            on_event,
            scraped,
            head,
        )
    host, port = split_address(listen or _LISTEN)
    if host in ("0.0.0.0", "::", "*"):
        raise UserError(
            f"listen={listen!r}: give a single address of this machine at which trainers reach it"
        )
    settings = PoolSettings(
        servers=servers, threads=threads, host=local_address_of(host), port=port, ports=ports, encrypt=encrypt
    )
    supply = _open_samples(source, overrides, Path(stores), cache, progress)
    return ServedData(settings, supply, own_secret(token), on_event, scraped)


@dataclass(frozen=True)
class _Samples:
    """The served samples."""

    store: Store
    augmentation: str | None
    """The augmentation; None if unspecified."""
    cache_bytes: int

    @property
    def arguments(self) -> dict[str, object]:
        """Arguments of the work of a data server."""
        return {
            "store": str(self.store.path.absolute()),
            "cache_bytes": self.cache_bytes,
            "augmentation_json": self.augmentation or "",
        }

    def arguments_for(self, terms: str) -> dict[str, object]:
        """Return the arguments for an existing pool that serves ``terms``, whose augmentation a bare store
        uses.

        Raises UserError if the augmentation differs from that of this recipe.
        """
        from cotswold.data.loading.served_store import DatasetInfo, DatasetView

        theirs = DatasetInfo.parsed(terms).augmentation_json
        if (
            self.augmentation is None
            and theirs
            and DatasetView("train", augmentation_json=theirs).uses_custom_function
        ):
            raise UserError(
                "the pool augments samples with a user-defined function; give the recipe that names it "
                "instead of the store"
            )
        if self.augmentation not in (None, theirs):
            raise UserError(
                "the pool has other augmentation transforms than this recipe; give the pool's recipe"
            )
        return {**self.arguments, "augmentation_json": theirs}


class ServedData(BackgroundService):
    """Samples served by a thread and its processes."""

    def __init__(
        self,
        settings: PoolSettings,
        samples: _Samples,
        token: Token,
        on_event: OnEvent,
        scraped: tuple[str, int] | None = None,
        head: tuple[str, int] | None = None,
    ) -> None:
        """Start serving.

        ``scraped`` is the host and port for Prometheus; ``head`` is the pool to join, None for a new pool.
        """
        self._head, self._scraped, self._metrics_url = head, scraped, ""
        self._settings, self._supply, self._token, self._on_event = settings, samples, token, on_event
        self._address = ""
        self._status: ServedDataStatus | None = None
        super().__init__("cotswold-serving-data")
        self._begin()

    @property
    def address(self) -> str:
        """``HOST:PORT``, for ``[data] servers`` and `cotswold.data.connect`."""
        return self._address

    @property
    def metrics_url(self) -> str:
        """URL of the metrics for Prometheus; empty without metrics."""
        return self._metrics_url

    @property
    def token(self) -> str:
        """The secret, for trainers."""
        return self._token.text

    @property
    def store(self) -> Store:
        """The served store."""
        return self._supply.store

    @property
    def status(self) -> ServedDataStatus:
        """The status of the last fraction of a second. Raises MachineError if all servers are lost."""
        self._raise_error()
        assert self._status is not None, "set before the service is ready"
        return self._status

    # --- the thread that serves ---

    def _serve(self) -> None:
        from cotswold.dataservice.runtime.pool import PRELOADED, open_pool
        from cotswold.dataservice.runtime.remote_servers import open_remote_servers
        from cotswold.host import ForkServer
        from cotswold.run.prometheus.server import PrometheusServer
        from cotswold.training.data.data_servers import WORK

        module = WORK.partition(":")[0]
        with ExitStack() as opened:
            if self._scraped is not None:
                scraping = PrometheusServer(*self._scraped, self._families)
                self._metrics_url = opened.enter_context(closing(scraping)).url
            processes = ForkServer((*PRELOADED, module))
            opened.callback(processes.close)
            if self._head is not None:
                with open_remote_servers(
                    self._head,
                    self._settings,
                    self._supply.store.identity,
                    WORK,
                    self._supply.arguments_for,
                    token=self._token,
                    processes=processes,
                    on_event=self._on_event,
                ) as remote_servers:
                    host, port = self._head
                    self._address = f"{host}:{port}"
                    self._proceed(remote_servers, lambda: remote_servers.is_finished)
                return
            with open_pool(
                self._settings,
                WORK,
                self._supply.arguments,
                token=self._token,
                processes=processes,
                on_event=self._on_event,
            ) as pool:
                self._address = pool.port_address
                self._proceed(pool, lambda: False)

    def _families(self) -> Iterable[MetricFamily]:
        """Return the metrics for Prometheus."""
        from cotswold.api.servers.data_server_metrics import families

        status = self._status
        return (
            []
            if status is None
            else families(status, self.store.identity, is_attached=self._head is not None)
        )

    def _proceed(self, pool: DataPool | RemoteServers, is_over: Callable[[], bool]) -> None:
        rate = _Rate()
        self._status = rate.status(pool.status())
        self._ready.set()
        while not self._stop.is_set() and not is_over():
            pool.proceed(_PROCEED_SECONDS)
            self._status = rate.status(pool.status())


class _Rate:
    """Totals and rates of the servers' work, including ended servers."""

    def __init__(self) -> None:
        self._made: dict[str, ServerLine] = {}
        """The last report of each server."""
        self._marks: list[tuple[float, int]] = []

    def status(self, status: PoolStatus) -> ServedDataStatus:
        """Return the status, including totals and rate."""
        self._made.update({each.name: each for each in status.servers})
        made = WorkTotals.from_reports(self._made.values())
        now, samples = time.monotonic(), made.samples
        self._marks = [each for each in self._marks if now - each[0] < _RATE_SECONDS] + [(now, samples)]
        since, first = self._marks[0]
        return ServedDataStatus(
            status.trainers,
            status.servers,
            made,
            (samples - first) / max(now - since, 1e-9),
            status.ended,
            status.replaced,
            {reason: count for reason, count in status.refused.items() if count},
            status.drawn,
            status.streams,
        )


def _open_samples(
    source: str | Path | Store | Recipe,
    overrides: Mapping[str, object] | Sequence[str],
    stores: Path,
    cache: str | None,
    progress: bool | None,
) -> _Samples:
    """Return the samples of a store or recipe, preparing them if necessary."""
    from cotswold import recipe as recipes
    from cotswold.data import Store
    from cotswold.data.loading.served_store import augmentation_to_json
    from cotswold.data.store.manifest import is_store
    from cotswold.training.data.augmentation import augmentation_of
    from cotswold.training.data.stores import open_store

    changed = override_list(overrides)
    if isinstance(source, Store) or (isinstance(source, str | Path) and is_store(source)):
        if changed:
            raise UserError("overrides apply to a recipe, not to a store; give the recipe instead")
        return _Samples(source if isinstance(source, Store) else Store(str(source)), None, bytes_of(cache))
    if isinstance(source, str | Path) and expanded(source).is_dir():
        raise UserError(f"{source} contains no store; give a folder written by cotswold prepare, or a recipe")
    display = display_for(progress)
    with recipe_name(source) as name:
        assert name is not None, "there is a recipe"
        recipe = recipes.load(name, changed, display.show)
    with display.count("preparing", recipe.data.type) as advance:
        store = open_store(recipe, stores, advance)
    return _Samples(
        store,
        augmentation_to_json(augmentation_of(recipe, store)),
        bytes_of(cache or getattr(recipe.data, "cache", None)),
    )


def bytes_of(cache: str | None) -> int:
    """Parse the size of a cache. Raises UserError for invalid text."""
    from cotswold.recipe.schema.fields import byte_count

    try:
        return byte_count(cache or _CACHE)
    except ValueError as error:
        raise UserError(f"cache: {error}") from error
