"""Error messages for invalid arguments.

Knows: the errors of the parser, recipes' fields. Does not know: what any command does.
"""

from __future__ import annotations

import re
from itertools import pairwise

from cyclopts import CycloptsError, MissingArgumentError, UnknownOptionError, UnusedCliTokensError

_LONG_LINE = 160


def sentence(error: CycloptsError) -> str:
    """Return the mistake, its remedy, and the command whose help says more."""
    chain = " ".join(error.command_chain or ())
    return f"{_mistake(error, chain or 'cotswold')} See {f'cotswold {chain}'.strip()} --help."


def shortened(text: str) -> str:
    """Shorten the longest words of a sentence in the middle."""
    return re.sub(
        rf"\S{{{_LONG_LINE},}}", lambda word: f"{word[0][: _LONG_LINE // 2]}...{word[0][-40:]}", text
    )


def flowing(doc: str) -> str:
    """Join the lines of each paragraph of a docstring, so that help can wrap at the terminal's width.

    Lines of examples, which are indented by two more than the text, stay separate. Python 3.13 and later
    remove the common indentation of docstrings.
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
            return f"{command} does not take {' '.join(error.unused_tokens)!r}; remove it."
        case UnknownOptionError():
            return _unknown(error, command)
    return str(error)


def _unknown(error: UnknownOptionError, command: str) -> str:
    """Explain an unknown option: how to set a recipe's field of that name, or the most similar option."""
    option = (error.token.keyword or error.token.value or "").partition("=")[0]
    if any("--set" in argument.names for argument in error.argument_collection):
        from cotswold.recipe.error_messages import FIELD_SYNONYMS
        from cotswold.recipe.field_types import places_of
        from cotswold.recipe.schema import Recipe

        word = option.lstrip("-").replace("-", "_")
        if f"--{FIELD_SYNONYMS.get(word)}" in [
            name for each in error.argument_collection for name in each.names
        ]:
            return f"{command} has no option {option}; did you mean --{FIELD_SYNONYMS[word]}?"
        places = places_of(FIELD_SYNONYMS.get(word, word), Recipe)
        if places:
            ways = " or ".join(f"--set {place}=VALUE" for place in places)
            return f"{command} has no option {option}; set the recipe's field by {ways}."
    return str(error)
