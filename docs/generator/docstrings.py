"""An extension of the reader of docstrings, which are plain text with code in backticks, not Markdown.

Knows: doctests, brackets and tags. Does not know: sections such as Args, which the reader finds.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_SPAN = re.compile(r"(`+)(?:(?!\1).)+?\1(?!`)", re.DOTALL)


class PlainDocstrings(Extension):
    """Converts every docstring when its object has been read."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Convert the docstring of an object.

        Args:
            obj: the object.
            kwargs: ignored.
        """
        if obj.docstring is not None:
            obj.docstring.value = convert(obj.docstring.value)


def convert(text: str) -> str:
    """Return a docstring as Markdown.

    >>> print(convert("Return x[a][b].\\n\\n>>> f(1)\\n2"))
    Return x[a]\\\\[b].
    <BLANKLINE>
    ```pycon
    >>> f(1)
    2
    ```
    """
    lines: list[str] = []
    is_test = False
    for line in text.split("\n"):
        starts = line.lstrip().startswith(">>>")
        indent = " " * (len(line) - len(line.lstrip()))
        if starts and not is_test:
            if lines and lines[-1].strip():
                lines.append("")
            fence_indent = indent
            lines.append(f"{indent}```pycon")
        elif is_test and not line.strip():
            lines.append(f"{fence_indent}```")
        is_test = starts or (is_test and bool(line.strip()))
        lines.append(line if is_test else _plain(line))
    if is_test:
        lines.append(f"{fence_indent}```")
    return "\n".join(lines)


def _plain(line: str) -> str:
    """Return a line outside code with brackets and tags as they are written."""
    spans: list[str] = []

    def keep(found: re.Match[str]) -> str:
        spans.append(found[0])
        return f"\0{len(spans) - 1}\0"

    kept = _SPAN.sub(keep, line)
    kept = re.sub(r"<(?=[A-Za-z/])", "&lt;", kept).replace("][", "]\\[")
    return re.sub(r"\0(\d+)\0", lambda found: spans[int(found[1])], kept)
