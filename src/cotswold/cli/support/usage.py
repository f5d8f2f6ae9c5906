"""Usage lines, and error messages for invalid arguments.

Knows: the errors of the parser, recipes' fields. Does not know: what any command does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from cyclopts import App, CycloptsError, MissingArgumentError, UnknownOptionError, UnusedCliTokensError

if TYPE_CHECKING:
    from cyclopts import Argument

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
            return f"{command} needs {_advice(error.argument)}."
        case MissingArgumentError() if error.argument is not None:
            return f"{command} needs a value after {_given_option(error)}."
        case UnusedCliTokensError() if error.unused_tokens:
            return f"{command} does not take {' '.join(error.unused_tokens)!r}; remove it."
        case UnknownOptionError():
            return _unknown(error, command)
    return str(error)


def _advice(argument: Argument) -> str:
    """Return the ways to write a required argument."""
    option, word = argument.name, _word(argument)
    if not _is_positional(argument):
        return f"{option} {word}"
    return f"{word}, alone or as {option} {word}" if option.startswith("-") else word


def _given_option(error: MissingArgumentError) -> str:
    """Return the option as typed; the argument's name if the parser does not say."""
    assert error.argument is not None, "checked by the caller"
    typed = [each.keyword for each in error.argument.tokens if each.keyword]
    return typed[-1] if typed else error.argument.name


def set_usages(app: App, names: Sequence[str]) -> None:
    """Set the usage lines of a command and of the commands below it, with every positional argument."""
    flags = {*app.help_flags, *app.version_flags}
    below = [name for name in app if name not in flags]
    app.usage = f"Usage: {_usage(app, names, bool(below))}"
    for name in below:
        set_usages(app[name], (*names, name))


def _usage(app: App, names: Sequence[str], has_commands: bool) -> str:
    """Return the usage of a command: required options, then positional arguments."""
    shown = [] if app.default_command is None else app.assemble_argument_collection(parse_docstring=False)
    positional = [_bracketed(each) for each in shown if each.show and _is_positional(each)]
    named = [each for each in shown if each.required and not _is_positional(each)]
    required = [f"{each.name} {_word(each)}" for each in named]
    command = [] if not has_commands else ["[COMMAND]" if app.default_command is not None else "COMMAND"]
    return " ".join([*names, *command, *required, "[OPTIONS]", *positional])


def _bracketed(argument: Argument) -> str:
    """Return the word of a positional argument: dots if it may be given again, brackets if it is optional."""
    repeated = argument.field_info.kind is argument.field_info.VAR_POSITIONAL
    word = f"{_word(argument)}{'...' if repeated else ''}"
    return word if argument.required else f"[{word}]"


def _is_positional(argument: Argument) -> bool:
    """True if an argument may be given without its option."""
    field = argument.field_info
    return field.kind in (field.POSITIONAL_ONLY, field.POSITIONAL_OR_KEYWORD, field.VAR_POSITIONAL)


def _word(argument: Argument) -> str:
    """Return the word for an argument's value, such as TOKEN_FILE."""
    return argument.name.lstrip("-").replace("-", "_").upper()


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
