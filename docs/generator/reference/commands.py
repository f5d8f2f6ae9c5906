"""Pages of the command line: one per command, from the definitions that also make `--help`.

Knows: the registered commands, the builder of their documentation. Does not know: what a command does.
"""

from __future__ import annotations

import re

from docs.generator.reference.text import prose, table

from cotswold.cli.main import COMMANDS, build

_SECTION = r"^## cotswold {}$(.*?)(?=^## |\Z)"
_REPEATED = re.compile(r"^cotswold ((?:[a-z-]+ )+)\1", re.MULTILINE)
"""A usage: the builder writes the names of the command before the text of the usage, which has them."""


def command_pages() -> dict[str, str]:
    """Return the list of commands, and one page for each."""
    rows = [
        [f"[`cotswold {name}`]({name}.md)", prose(sentence, "../../")]
        for name, (_, sentence) in COMMANDS.items()
    ]
    index = (
        "# Command line\n\n"
        "`cotswold COMMAND --help` prints the same texts. `--debug` adds the traceback to an error. The "
        "exit\n"
        "codes of all commands are in [Errors and exit codes](../errors-and-exit-codes.md).\n\n"
        + table(["command", "what it does"], rows)
    )
    return {
        "reference/commands/index.md": index,
        **{f"reference/commands/{name}.md": command_page(name) for name in sorted(COMMANDS)},
    }


def command_page(name: str) -> str:
    """Return the page of a command and its subcommands."""
    text = build(name).generate_docs(output_format="markdown", recursive=True, heading_level=1)
    found = re.search(_SECTION.format(re.escape(name)), text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise LookupError(f"the documentation of the command line has no section for {name}")
    text = _REPEATED.sub(r"cotswold \1", _markdown(found[1]))
    return f"# cotswold {name}\n\n{text.strip()}\n"


def _markdown(text: str) -> str:
    """Return generated documentation with examples in fences, and headings one level up."""
    lines: list[str] = []
    is_code, is_example = False, False
    for line in text.split("\n"):
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code:
            starts = line.startswith("  ") and not line.startswith("    ") and line.strip() != ""
            if starts and not is_example:
                lines.append("```console")
            elif is_example and not starts and line.strip():
                _end_example(lines)
            is_example = starts or (is_example and not line.strip())
            if starts:
                line = line[2:]
            elif not is_example:
                line = re.sub(r"^#(#+ )", r"\1", prose(line, "../../"))
        lines.append(line)
    if is_example:
        _end_example(lines)
    return "\n".join(lines)


def _end_example(lines: list[str]) -> None:
    """Close a fence before the empty lines at the end."""
    end = len(lines)
    while not lines[end - 1].strip():
        end -= 1
    lines[end:end] = ["```", ""]
