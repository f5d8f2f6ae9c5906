"""What is said of words that make no command.

Knows: the errors of the parser, recipes' fields. Does not know: what any command does.
"""

from __future__ import annotations

import re
from itertools import pairwise

from cyclopts import CycloptsError, MissingArgumentError, UnknownOptionError, UnusedCliTokensError

_LONG = 160


def sentence(error: CycloptsError) -> str:
    """The mistake, its remedy, and whose help says more."""
    chain = " ".join(error.command_chain or ())
    return f"{_mistake(error, chain or 'cotswold')} See {f'cotswold {chain}'.strip()} --help."


def shortened(text: str) -> str:
    """A sentence whose longest words are cut in the middle."""
    return re.sub(rf"\S{{{_LONG},}}", lambda word: f"{word[0][: _LONG // 2]}...{word[0][-40:]}", text)


def flowing(doc: str) -> str:
    """A docstring whose paragraphs are one line each, to be folded as wide as a terminal is.

    Lines of examples, which stand by themselves, stay: those that are indented further than the text by two.
    Python 3.13 and later keep docstrings without the indentation that all of their lines have.
    """
    lines = doc.splitlines()
    base = min((_indent(line) for line in lines[1:] if line.strip()), default=0)
    flowed = lines[:1]
    for before, line in pairwise(lines):
        together = (
            before.strip() and line.strip() and (_indent(before) == _indent(line) or before is lines[0])
        )
        if together and _indent(line) != base + 2 and not {"-", ""} & {line.strip("- "), before.strip("- ")}:
            flowed[-1] += f" {line.strip()}"
        else:
            flowed.append(line)
    return "\n".join(flowed)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _mistake(error: CycloptsError, command: str) -> str:
    match error:
        case MissingArgumentError() if error.argument is not None and error.argument.required:
            option = error.argument.name
            return f"{command} needs {option.lstrip('-').upper()}, alone or as {option} VALUE."
        case UnusedCliTokensError() if error.unused_tokens:
            return f"{command} has no use for {' '.join(error.unused_tokens)!r}; take it out."
        case UnknownOptionError():
            return _unknown(error, command)
    return str(error)


def _unknown(error: UnknownOptionError, command: str) -> str:
    """For an option that is a recipe's field, the way to set it; otherwise the option that is most alike."""
    option = (error.token.keyword or error.token.value or "").partition("=")[0]
    if any("--set" in argument.names for argument in error.argument_collection):
        from cotswold.recipe.error_messages import MEANT
        from cotswold.recipe.field_types import places_of

        word = option.lstrip("-").replace("-", "_")
        if f"--{MEANT.get(word)}" in [name for each in error.argument_collection for name in each.names]:
            return f"{command} has no option {option}; did you mean --{MEANT[word]}?"
        places = places_of(MEANT.get(word, word))
        if places:
            ways = " or ".join(f"--set {place}=VALUE" for place in places)
            return f"{command} has no option {option}; a recipe's field is set by {ways}."
    return str(error)
