"""Text of a recipe, or of another kind of TOML file: from a path or from a package.

Knows: files, texts that ship with a package. Does not know: their content.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import resources
from pathlib import Path

from cotswold.errors import UserError
from cotswold.recipe import bounds as limits
from cotswold.recipe.bounds import shorten_value


@dataclass(frozen=True)
class ShippedFiles:
    """TOML files in the folder `shipped` of a package; ``kind`` names them in errors of class ``error``."""

    package: str
    kind: str
    error: type[UserError]

    def names(self) -> list[str]:
        """Return the names of the shipped files, without their ending."""
        files = (resources.files(self.package) / "shipped").iterdir()
        return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))

    def text(self, where: str | Path) -> tuple[str, str]:
        """Return the text of a file, or of the shipped one of that name, and its name for errors.

        Reads at most the size that `limits.toml` accepts. Raises ``error`` if neither exists.
        """
        path, kind, names = Path(where), self.kind, self.names()
        if not str(where):
            raise self.error(f"the {kind}'s name is empty; give a file, or one of {', '.join(names)}")
        try:
            if path.is_file():
                return limits.read(path), str(path)
            folder = path.is_dir()
        except UnicodeDecodeError as error:
            raise self.error(f"{path} is not a text in UTF-8; a {kind} is a TOML file") from error
        except OSError as error:
            raise self.error(f"{shorten_value(str(path), 200)} cannot be read: {error.strerror}") from error
        name = str(where).removesuffix(".toml")
        if name in names:
            file = resources.files(self.package) / "shipped" / f"{name}.toml"
            return file.read_text(encoding="utf-8"), f"{name}.toml"
        if folder:
            inside = path / f"{kind}.toml"
            guess = f"; did you mean {inside}?" if inside.is_file() else f"; give a {kind}'s TOML file"
            if inside.is_file() and (path / "run.json").is_file():
                resume = f"to resume the run: --run {path} --resume (Python: directory=, resume=True)"
                guess = f" of a run; its recipe is {path / 'recipe.toml'}; {resume}"
            raise self.error(f"{path} is a folder{guess}")
        close = get_close_matches(name, names, n=1)
        guess = f"; did you mean {close[0]}?" if close else ";"
        raise self.error(
            f"no {kind} file {shorten_value(str(where), 200)}{guess} shipped {kind}s are {', '.join(names)}"
        )
