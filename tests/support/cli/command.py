"""The command, called inside this process.

Knows: its arguments, exit code and both outputs. Does not know: the tests.
"""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO

from cotswold.cli.main import main


@dataclass(frozen=True)
class Said:
    """Exit status and output of the command."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """Return its one sentence about an error; fail without one, with several, or with a traceback."""
        lines = self.err.strip().splitlines()
        assert "Traceback" not in self.err
        sentences = sentences_in(lines)
        assert len(sentences) == 1 and lines[-1] == sentences[0], self.err
        return sentences[0].removeprefix("cotswold: ")


def sentences_in(lines: list[str]) -> list[str]:
    """Return the command's messages, except the note about a store's classes."""
    return [
        line for line in lines if line.startswith("cotswold: ") and " classes, with samples for" not in line
    ]


def cotswold(*words: object) -> Said:
    """Run `cotswold WORDS`."""
    out, err = StringIO(), StringIO()
    status: object = None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(word) for word in words])
        except SystemExit as ended:
            status = ended.code
    assert isinstance(status, int)
    return Said(status, out.getvalue(), err.getvalue())
