"""Data servers for runs and for anybody's own loops, from Python: `serve_data`.

Knows: stores, recipes, a thread that serves, how fast it goes. Does not know: commands, messages, who trains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.request import override_list, recipe_name
from cotswold.api.servers.background import InThread
from cotswold.api.servers.parameter_client import secret_of, split_address
from cotswold.api.servers.parameter_server import own_secret
from cotswold.errors import UserError
from cotswold.files import expanded
from cotswold.ui.display import display_for

if TYPE_CHECKING:
    from cotswold.data import Store
    from cotswold.dataservice.core.shared_epochs import Drawn, StreamTotals
    from cotswold.dataservice.runtime.pool import DataPool, PoolSettings, PoolStatus, ServerLine, TrainerLine
    from cotswold.dataservice.runtime.remote_servers import Lending
    from cotswold.host import Token
    from cotswold.recipe import Recipe
    from cotswold.run.prometheus.exposition import Family

OnEvent = Callable[[str, Mapping[str, object]], None]
_LISTEN = "127.0.0.1:0"
_CACHE = "1 GB"
"""Where no recipe says it."""
_PROCEED_SECONDS = 0.1
_RATE_SECONDS = 5.0
"""Over which samples a second are counted."""


@dataclass(frozen=True)
class Made:
    """What servers have done so far, those that are gone included."""

    samples: int
    batches: int
    sent_bytes: int
    """Of these batches."""
    seconds: float
    """In which their threads made them."""
    hits: int
    misses: int

    @classmethod
    def by(cls, lines: Iterable[ServerLine]) -> Made:
        """The sums."""
        each = [
            (one.supplied, one.batches, one.sent_bytes, one.seconds, one.hits, one.misses) for one in lines
        ]
        return cls(*map(sum, zip((0, 0, 0, 0.0, 0, 0), *each, strict=True)))


@dataclass(frozen=True)
class ServedDataStatus:
    """Where things are."""

    trainers: tuple[TrainerLine, ...]
    """Who takes batches; none where servers are lent, for the pool's head alone knows."""
    servers: tuple[ServerLine, ...]
    """The data servers that are there; those that other machines lend have no ``pid``."""
    made: Made
    samples_per_second: float
    """Over the last seconds."""
    ended: Mapping[str, str]
    """Servers of this machine that ended, and why."""
    replaced: int
    """Servers that were started in the place of those."""
    refused: Mapping[str, int]
    """Callers without the token (`strangers`) and bytes that are no message, by reason."""
    drawn: tuple[Drawn, ...]
    """The account of each epoch that loops share."""
    streams: tuple[StreamTotals, ...]
    """The sums over all epochs of each stream."""

    @property
    def samples(self) -> int:
        """Made so far, also by servers that are gone."""
        return self.made.samples

    @property
    def waiting(self) -> int:
        """Batches that were asked for, and wait until somebody begins with them."""
        return sum(each.waiting for each in self.servers)

    @property
    def hit_rate(self) -> float | None:
        """The part of the samples that were found in memory; None where none was wanted yet."""
        hits = sum(each.hits for each in self.servers)
        wanted = hits + sum(each.misses for each in self.servers)
        return hits / wanted if wanted else None


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
    """Serve batches of a store's samples to runs whose recipe says ``[data] servers = "HOST:PORT"``, and to
    loops that `cotswold.data.connect` connects; use it in a ``with`` statement.

    ``source`` is a store, its folder, or a recipe (with ``overrides``), whose samples are prepared under
    ``stores`` unless they have been, and which says how training samples are varied. ``servers`` processes,
    each with so many ``threads``, read and vary samples; each keeps shards of at most ``cache`` in memory
    (the recipe's ``data.cache``, or 1 GB). ``listen`` is an address of this machine at which trainers reach
    it, port 0 for any (127.0.0.1:0); ``token`` a secret, or a file for it; without, COTSWOLD_TOKEN or a new
    one. ``ports``: the first and the last of those of the servers. ``metrics``: a port of 127.0.0.1, or
    another ``ADDRESS:PORT``, at which Prometheus reads what servers do (`ServedData.metrics_url`).

    With ``join`` (``HOST:PORT``) the servers are lent to the pool that serves there already, of the same
    samples: trainers connect there, and it is over when that pool ends.

    Raises UserError for what cannot be, another token or other samples than the pool's, StoreError,
    SourceError and RecipeError for samples that are not there, MachineError where processes cannot be
    started, the port is taken, or nobody serves at ``join``.
    """
    from cotswold.dataservice.runtime.pool import PoolSettings
    from cotswold.recipe.schema.cluster import metrics_place
    from cotswold.transport.host_names import own_address_of

    try:
        scraped = metrics_place(None if metrics is None else str(metrics))
    except ValueError as error:
        raise UserError(f"metrics: {error}") from error
    if join is not None and listen is not None:
        raise UserError("trainers reach lent servers by the pool that they join; give listen or join")
    if join is not None:
        settings = PoolSettings(servers=servers, threads=threads, ports=ports, encrypt=encrypt)
        head = split_address(join)
        secret = secret_of(token)
        return ServedData(
            settings,
            _supply_of(source, overrides, Path(stores), cache, progress),
            secret,
            on_event,
            scraped,
            head,
        )
    host, port = split_address(listen or _LISTEN)
    if host in ("0.0.0.0", "::", "*"):
        raise UserError(f"listen={listen!r}: write one address of this machine, at which trainers reach it")
    settings = PoolSettings(
        servers=servers, threads=threads, host=own_address_of(host), port=port, ports=ports, encrypt=encrypt
    )
    supply = _supply_of(source, overrides, Path(stores), cache, progress)
    return ServedData(settings, supply, own_secret(token), on_event, scraped)


@dataclass(frozen=True)
class _Supply:
    """What is served."""

    store: Store
    varying: str | None
    """How samples are varied; None where nobody has said it."""
    cache_bytes: int

    @property
    def arguments(self) -> dict[str, object]:
        """For the work of a data server."""
        return {
            "store": str(self.store.path.absolute()),
            "cache_bytes": self.cache_bytes,
            "varying": self.varying or "",
        }

    def arguments_for(self, terms: str) -> dict[str, object]:
        """The same for the pool that serves ``terms``, by whose transforms a bare store is varied; raises
        UserError where they are not those of this recipe."""
        from cotswold.data.service.store import Terms, View

        theirs = Terms.parsed(terms).varying
        if self.varying is None and theirs and View("train", varying=theirs).names_own:
            raise UserError(
                "the pool varies samples by a function of somebody's own; give the recipe that names it "
                "instead of the store"
            )
        if self.varying not in (None, theirs):
            raise UserError(
                "the pool varies samples by other transforms than this recipe; give the pool's recipe"
            )
        return {**self.arguments, "varying": theirs}


class ServedData(InThread):
    """Samples that are served by a thread and processes of its own."""

    def __init__(
        self,
        settings: PoolSettings,
        supply: _Supply,
        token: Token,
        on_event: OnEvent,
        scraped: tuple[str, int] | None = None,
        head: tuple[str, int] | None = None,
    ) -> None:
        """``scraped``: host and port at which Prometheus reads; ``head``: those of the pool to which servers
        are lent, None for a pool of its own."""
        self._head, self._scraped, self._metrics_url = head, scraped, ""
        self._settings, self._supply, self._token, self._on_event = settings, supply, token, on_event
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
        """Where Prometheus reads metrics; empty where that was not asked for."""
        return self._metrics_url

    @property
    def token(self) -> str:
        """The secret, for trainers."""
        return self._token.text

    @property
    def store(self) -> Store:
        """Whose samples are served."""
        return self._supply.store

    @property
    def status(self) -> ServedDataStatus:
        """Where things were some moments ago; raises MachineError where every server is dead."""
        self._raise_error()
        assert self._status is not None, "it is taken before anybody is told"
        return self._status

    # --- the thread that serves ---

    def _serve(self) -> None:
        from cotswold.dataservice.runtime.pool import PRELOADED, open_pool
        from cotswold.dataservice.runtime.remote_servers import open_lending
        from cotswold.host import ForkServer
        from cotswold.run.prometheus.server import Scraping
        from cotswold.training.data.service import WORK

        module = WORK.partition(":")[0]
        with ExitStack() as opened:
            if self._scraped is not None:
                scraping = Scraping(*self._scraped, self._families)
                self._metrics_url = opened.enter_context(closing(scraping)).url
            processes = ForkServer((*PRELOADED, module))
            opened.callback(processes.close)
            if self._head is not None:
                with open_lending(
                    self._head,
                    self._settings,
                    self._supply.store.identity,
                    WORK,
                    self._supply.arguments_for,
                    token=self._token,
                    processes=processes,
                    on_event=self._on_event,
                ) as lending:
                    host, port = self._head
                    self._address = f"{host}:{port}"
                    self._proceed(lending, lambda: lending.is_over)
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

    def _families(self) -> Iterable[Family]:
        """What Prometheus reads."""
        from cotswold.run.prometheus.data_server import families

        status = self._status
        return [] if status is None else families(status, self.store.identity, is_lent=self._head is not None)

    def _proceed(self, pool: DataPool | Lending, is_over: Callable[[], bool]) -> None:
        rate = _Rate()
        self._status = rate.of(pool.status())
        self._ready.set()
        while not self._stop.is_set() and not is_over():
            pool.proceed(_PROCEED_SECONDS)
            self._status = rate.of(pool.status())


class _Rate:
    """What servers have made, those that are gone included, and how fast."""

    def __init__(self) -> None:
        self._made: dict[str, ServerLine] = {}
        """What each server has said last."""
        self._marks: list[tuple[float, int]] = []

    def of(self, status: PoolStatus) -> ServedDataStatus:
        """The status, with it."""
        self._made.update({each.name: each for each in status.servers})
        made = Made.by(self._made.values())
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


def _supply_of(
    source: str | Path | Store | Recipe,
    overrides: Mapping[str, object] | Sequence[str],
    stores: Path,
    cache: str | None,
    progress: bool | None,
) -> _Supply:
    """What a store, or a recipe, gives to serve; samples are prepared where they are not yet."""
    from cotswold import recipe as recipes
    from cotswold.data import Store
    from cotswold.data.service.store import said
    from cotswold.data.store.manifest import is_store
    from cotswold.training.data.stores import open_store
    from cotswold.training.data.varying import varying_of

    changed = override_list(overrides)
    if isinstance(source, Store) or (isinstance(source, str | Path) and is_store(source)):
        if changed:
            raise UserError("a store has no fields to override; give the recipe instead")
        return _Supply(source if isinstance(source, Store) else Store(str(source)), None, bytes_of(cache))
    if isinstance(source, str | Path) and expanded(source).is_dir():
        raise UserError(f"{source} holds no store; name a folder that cotswold prepare wrote, or a recipe")
    display = display_for(progress)
    with recipe_name(source) as name:
        assert name is not None, "there is a recipe"
        recipe = recipes.load(name, changed, display.say)
    with display.counting("preparing", recipe.data.type) as advance:
        store = open_store(recipe, stores, advance)
    return _Supply(
        store, said(varying_of(recipe, store)), bytes_of(cache or getattr(recipe.data, "cache", None))
    )


def bytes_of(cache: str | None) -> int:
    """The bound of a cache; raises UserError for a text that says none."""
    from cotswold.recipe.schema.fields import byte_count

    try:
        return byte_count(cache or _CACHE)
    except ValueError as error:
        raise UserError(f"cache: {error}") from error
