"""What workers must fetch, and what they can make themselves, to have the point of an evaluation.

Knows: commands, which vectors hold the same numbers. Does not know: numbers, messages.

The way of Aberdeen et al. 2000: workers keep the point and the direction; in a line search a step length is
all that travels. What a vector holds is known by how it was made: `Combine` of the same terms makes the same
content, whatever the names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cotswold.batch.core.requests import Request
from cotswold.optim import Combine, Command, Dot, Drop, Multiply

Content = int
"""What a vector holds: two vectors of the same content are equal to the bit."""


@dataclass(frozen=True)
class Fetching:
    """How workers come to have the point."""

    keeps: tuple[str, ...]
    """All vectors that are needed; a worker that missed the evaluation before fetches these."""
    changed: tuple[str, ...]
    """Those that others have to fetch."""
    local: tuple[Command, ...]
    """What makes the point then; a command that makes what was fetched is passed over."""

    def asked_in(self, request: Request) -> Request:
        """The same request, of workers that keep vectors."""
        return replace(request, keeps=self.keeps, changed=self.changed, local=self.local)


@dataclass
class Contents:
    """What the vectors of the shards hold, and those of workers that had the newest point."""

    _named: dict[str, Content] = field(default_factory=dict)
    _made: dict[object, Content] = field(default_factory=dict)
    """By recipe: how a content was made."""
    _recipes: dict[Content, tuple[tuple[float, Content], ...]] = field(default_factory=dict)
    _newest: Content = 0
    _held: dict[str, Content] = field(default_factory=dict)
    """What workers have, by name."""

    def check_name(self, name: str) -> None:
        """Raises KeyError where there is no such vector."""
        if name not in self._named:
            raise KeyError(f"no vector {name!r}; there are {', '.join(sorted(self._named))}")

    def check(self, commands: Sequence[Command], made: Sequence[str] = (), at: str | None = None) -> None:
        """Raises KeyError for a vector that there is not when it is needed; ``made`` are there besides, and
        ``at`` is needed in the end."""
        names = {*self._named, *made}
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
                raise KeyError(f"no vector {missing[0]!r}; there are {', '.join(sorted(names))}")
            if isinstance(command, Combine | Multiply):
                names.add(command.out)
        if at is not None and at not in names:
            raise KeyError(f"no vector {at!r}; there are {', '.join(sorted(names))}")

    def forget_held(self) -> None:
        """What workers have is not known any more."""
        self._held.clear()

    def written(self, name: str) -> None:
        """A vector was set to numbers that nobody has seen."""
        self._named[name] = self._new()

    def ran(self, commands: Sequence[Command]) -> None:
        """The shards did this."""
        for command in commands:
            match command:
                case Combine(out, ((1.0, name),)):
                    self._named[out] = self._named[name]
                case Combine(out, terms):
                    recipe = tuple((factor, self._named[name]) for factor, name in terms)
                    self._named[out] = self._known(recipe)
                case Multiply(out, _, _):
                    self.written(out)
                case Drop(name):
                    self._named.pop(name, None)
                case _:
                    pass

    def fetching(self, at: str) -> Fetching:
        """How workers get ``at`` as it is on the shards now; from then on it is taken that they have it."""
        wanted = self._named[at]
        found = self._made_of_kept(at, wanted) or Fetching((at,), (at,), ())
        if self._held.get(at) == wanted:
            found = Fetching((at,), (), ())
        self._held = {**self._after(found), at: wanted}
        self._forget()
        return found

    def _made_of_kept(self, at: str, wanted: Content) -> Fetching | None:
        """The point from vectors that are on the shards, of which workers have some."""
        recipe = self._recipes.get(wanted)
        if recipe is None:
            return None
        by_content = {content: name for name, content in self._named.items() if name != at}
        if not all(content in by_content for _, content in recipe):
            return None
        names = {content: by_content[content] for _, content in recipe}
        changed: set[str] = set()
        copies: list[Command] = []
        # one that must be fetched spoils what would be made of its old numbers: so until nothing changes
        while True:
            copies, more = self._copies(names, changed)
            if not more:
                break
            changed |= more
        terms = tuple((factor, names[content]) for factor, content in recipe)
        return Fetching(
            tuple(sorted(set(names.values()))), tuple(sorted(changed)), (*copies, Combine(at, terms))
        )

    def _copies(self, names: Mapping[Content, str], changed: set[str]) -> tuple[list[Command], set[str]]:
        """What workers make of their own, and what else they must fetch."""
        have = {name: content for name, content in self._held.items() if name not in changed}
        commands: list[Command] = []
        for content, name in names.items():
            if name in changed or have.get(name) == content:
                continue
            source = next((each for each, held in have.items() if held == content), None)
            command: Command | None = None if source is None else Combine(name, ((1.0, source),))
            if command is None:
                command = self._made_locally(name, content, have)
            if command is None:
                return [], {name}
            commands.append(command)
            have[name] = content
        return commands, set()

    def _made_locally(self, name: str, content: Content, have: Mapping[str, Content]) -> Command | None:
        recipe = self._recipes.get(content)
        if recipe is None:
            return None
        sources = {held: each for each, held in have.items()}
        if not all(each in sources for _, each in recipe):
            return None
        return Combine(name, tuple((factor, sources[each]) for factor, each in recipe))

    def _after(self, found: Fetching) -> dict[str, Content]:
        held = {name: content for name, content in self._held.items() if name in found.keeps}
        return {**held, **{name: self._named[name] for name in found.keeps}}

    def _known(self, recipe: tuple[tuple[float, Content], ...]) -> Content:
        if recipe not in self._made:
            self._made[recipe] = self._new()
            self._recipes[self._made[recipe]] = recipe
        return self._made[recipe]

    def _new(self) -> Content:
        self._newest += 1
        return self._newest

    def _forget(self) -> None:
        """How contents were made is kept while somebody has them, or what they were made of."""
        alive = {*self._named.values(), *self._held.values()}
        for recipe, content in list(self._made.items()):
            assert isinstance(recipe, tuple)
            if content not in alive and not all(each in alive for _, each in recipe):
                del self._made[recipe], self._recipes[content]
