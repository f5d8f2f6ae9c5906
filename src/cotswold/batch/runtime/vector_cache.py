"""Vectors that workers must fetch or can compute themselves to have the point of an evaluation.

Knows: commands, vectors with equal contents. Does not know: numbers, messages.

Method of Aberdeen et al. 2000: workers keep the point and the direction, and a line search transfers only
step lengths. A content is identified by the commands that produced it: `Combine` of the same terms produces
the same content under any name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cotswold.batch.core.requests import EvaluationRequest
from cotswold.optim import Combine, Command, Dot, Drop, Multiply

Content = int
"""Identity of a vector's values: vectors of equal content are bitwise equal."""


@dataclass(frozen=True)
class FetchInstructions:
    """Instructions for workers to get the point."""

    keeps: tuple[str, ...]
    """All needed vectors; a worker that missed the previous evaluation fetches these."""
    changed: tuple[str, ...]
    """Vectors that the other workers must fetch."""
    local: tuple[Command, ...]
    """Commands that then compute the point; commands that produce a fetched vector are skipped."""

    def apply_to(self, request: EvaluationRequest) -> EvaluationRequest:
        """Return the same request for workers that keep vectors."""
        return replace(request, keeps=self.keeps, changed=self.changed, local=self.local)


@dataclass
class VectorCache:
    """Contents of the vectors on the shards, and on workers that had the newest point."""

    _named: dict[str, Content] = field(default_factory=dict)
    _computed: dict[object, Content] = field(default_factory=dict)
    """Contents by recipe, the terms that produced them."""
    _recipes: dict[Content, tuple[tuple[float, Content], ...]] = field(default_factory=dict)
    _newest: Content = 0
    _contents: dict[str, Content] = field(default_factory=dict)
    """Contents on workers, by name."""

    def check_name(self, name: str) -> None:
        """Raise KeyError if the vector does not exist."""
        if name not in self._named:
            raise KeyError(f"unknown vector {name!r}; use one of {', '.join(sorted(self._named))}")

    def check(self, commands: Sequence[Command], created: Sequence[str] = (), at: str | None = None) -> None:
        """Raise KeyError if a command needs a vector that does not exist; ``created`` exist in addition, and
        ``at`` is needed at the end."""
        names = {*self._named, *created}
        for command in commands:
            needed: tuple[str, ...] = ()
            match command:
                case Combine(_, terms):
                    needed = tuple(name for _, name in terms)
                case Multiply(_, left, right) | Dot(left, right):
                    needed = (left, right)
                case Drop(name):
                    names.discard(name)
            missing = [name for name in needed if name not in names]
            if missing:
                raise KeyError(f"unknown vector {missing[0]!r}; use one of {', '.join(sorted(names))}")
            if isinstance(command, Combine | Multiply):
                names.add(command.target)
        if at is not None and at not in names:
            raise KeyError(f"unknown vector {at!r}; use one of {', '.join(sorted(names))}")

    def forget_workers(self) -> None:
        """Forget the contents on workers."""
        self._contents.clear()

    def written(self, name: str) -> None:
        """Record that a vector was set to unknown values."""
        self._named[name] = self._new()

    def ran(self, commands: Sequence[Command]) -> None:
        """Record that the shards have run these commands."""
        for command in commands:
            match command:
                case Combine(out, ((1.0, name),)):
                    self._named[out] = self._named[name]
                case Combine(out, terms):
                    recipe = tuple((factor, self._named[name]) for factor, name in terms)
                    self._named[out] = self._simplified(recipe)
                case Multiply(out, _, _):
                    self.written(out)
                case Drop(name):
                    self._named.pop(name, None)
                case _:
                    pass

    def instructions(self, at: str) -> FetchInstructions:
        """Return instructions for workers to get ``at`` as it is on the shards; from then on the workers
        count as having it."""
        wanted = self._named[at]
        found = self._from_kept(at, wanted) or FetchInstructions((at,), (at,), ())
        if self._contents.get(at) == wanted:
            found = FetchInstructions((at,), (), ())
        self._contents = {**self._contents_after(found), at: wanted}
        self._forget()
        return found

    def _from_kept(self, at: str, wanted: Content) -> FetchInstructions | None:
        """Return the point as a combination of vectors on the shards, some of which workers have."""
        recipe = self._recipes.get(wanted)
        if recipe is None:
            return None
        by_content = {content: name for name, content in self._named.items() if name != at}
        if not all(content in by_content for _, content in recipe):
            return None
        names = {content: by_content[content] for _, content in recipe}
        changed: set[str] = set()
        copies: list[Command] = []
        # a vector that must be fetched invalidates those computed from its old values: repeat until nothing
        # changes
        while True:
            copies, more = self._copies(names, changed)
            if not more:
                break
            changed |= more
        terms = tuple((factor, names[content]) for factor, content in recipe)
        return FetchInstructions(
            tuple(sorted(set(names.values()))), tuple(sorted(changed)), (*copies, Combine(at, terms))
        )

    def _copies(self, names: Mapping[Content, str], changed: set[str]) -> tuple[list[Command], set[str]]:
        """Return commands on the workers' own vectors, and the vectors that they must fetch in addition."""
        have = {name: content for name, content in self._contents.items() if name not in changed}
        commands: list[Command] = []
        for content, name in names.items():
            if name in changed or have.get(name) == content:
                continue
            source = next((each for each, held in have.items() if held == content), None)
            command: Command | None = None if source is None else Combine(name, ((1.0, source),))
            if command is None:
                command = self._local_command(name, content, have)
            if command is None:
                return [], {name}
            commands.append(command)
            have[name] = content
        return commands, set()

    def _local_command(self, name: str, content: Content, have: Mapping[str, Content]) -> Command | None:
        recipe = self._recipes.get(content)
        if recipe is None:
            return None
        sources = {held: each for each, held in have.items()}
        if not all(each in sources for _, each in recipe):
            return None
        return Combine(name, tuple((factor, sources[each]) for factor, each in recipe))

    def _contents_after(self, found: FetchInstructions) -> dict[str, Content]:
        held = {name: content for name, content in self._contents.items() if name in found.keeps}
        return {**held, **{name: self._named[name] for name in found.keeps}}

    def _simplified(self, recipe: tuple[tuple[float, Content], ...]) -> Content:
        if recipe not in self._computed:
            self._computed[recipe] = self._new()
            self._recipes[self._computed[recipe]] = recipe
        return self._computed[recipe]

    def _new(self) -> Content:
        self._newest += 1
        return self._newest

    def _forget(self) -> None:
        """Drop recipes of contents that no vector has, unless all of their terms exist."""
        alive = {*self._named.values(), *self._contents.values()}
        for recipe, content in list(self._computed.items()):
            assert isinstance(recipe, tuple)
            if content not in alive and not all(each in alive for _, each in recipe):
                del self._computed[recipe], self._recipes[content]
