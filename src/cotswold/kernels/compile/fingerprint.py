"""Fingerprint of generated code: a digest of the functions that generate it and of all that they reach.

Knows: code objects, constants, closures, classes of this package. Does not know: files, kernels, LLVM.

Files may have been replaced since their import, or may not exist (a zip, only ``.pyc``), so nothing is read.
The walk follows the names that a function's code uses to other functions, classes and values, including the
contents of its closure (the idea of numba's ``core/caching.py``). Objects of other packages count by name
only; callers add the versions of those packages.
"""

from __future__ import annotations

import enum
import functools
import hashlib
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType

from llvmlite import ir

_PACKAGE_PREFIX = __name__.partition(".")[0] + "."
_PLAIN = (type(None), bool, int, float, str, bytes, type(Ellipsis))
_DESCRIBED_BY_TEXT = (ir.Type, ir.Constant)
"""Values of other packages that are described completely by their text."""


def fingerprint(*roots: object) -> str:
    """Return a digest of functions and values; raise TypeError for a value of unknown content."""
    found = hashlib.sha256()
    numbers: dict[int, int] = {}
    left: list[object] = [*reversed(roots)]
    while left:
        value = left.pop()
        if isinstance(value, FunctionType | type) or _is_instance(value):  # these may refer to themselves
            if id(value) in numbers:
                found.update(b"seen %d\n" % numbers[id(value)])
                continue
            numbers[id(value)] = len(numbers)
        text, children = _parts(value)
        found.update(f"{text}\n".encode())
        left += reversed(children)
    return found.hexdigest()


def _parts(value: object) -> tuple[str, list[object]]:
    """Return the text of a value, and the values that it consists of or reaches."""
    if isinstance(value, enum.Enum):
        return f"member {value.name} {value.value!r}", [type(value)]
    if isinstance(value, _PLAIN):
        return f"{type(value).__name__} {value!r}", []
    if isinstance(value, tuple | list):
        return f"{len(value)} in a row", list(value)
    if isinstance(value, dict):
        return f"{len(value)} named", [part for item in value.items() for part in item]
    if isinstance(value, frozenset | set):
        return f"set {sorted(map(repr, value))}", []
    if isinstance(value, FunctionType):
        return _function(value) if _is_package_module(value.__module__) else (_name(value), [])
    if isinstance(value, type):
        return _class(value)
    if isinstance(value, MethodType):
        return "method", [value.__func__, value.__self__]
    if isinstance(value, ModuleType):
        return f"module {value.__name__}", []
    if isinstance(value, functools.partial):
        return "partial", [value.func, value.args, value.keywords]
    for attribute in ("__wrapped__", "__func__", "fget", "func"):  # caches, class methods, properties
        if hasattr(value, attribute) and not _is_package_module(type(value).__module__):
            return f"{type(value).__name__} of", [getattr(value, attribute)]
    if _is_instance(value):
        return "instance", [type(value), dict(sorted(vars(value).items()))]
    if isinstance(value, _DESCRIBED_BY_TEXT):
        return f"{type(value).__name__} {value}", []
    if callable(value) and hasattr(value, "__qualname__"):
        return _name(value), []
    raise TypeError(f"generated code must not depend on {value!r}: its content cannot be digested")


def _is_package_module(module: str | None) -> bool:
    return f"{module}.".startswith(_PACKAGE_PREFIX)


def _is_instance(value: object) -> bool:
    """True if a value is an instance of a class of this package, other than an enumeration."""
    return _is_package_module(type(value).__module__) and not isinstance(value, enum.Enum)


def _name(value: object) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


def _class(kind: type) -> tuple[str, list[object]]:
    """Digest a class of this package: bases, functions, and attributes that Python did not add."""
    if not _is_package_module(kind.__module__):
        return _name(kind), []
    if issubclass(kind, enum.Enum):
        done = [value for value in vars(kind).values() if isinstance(value, FunctionType | property)]
        return f"{_name(kind)} {[(one.name, one.value) for one in kind]!r}", [*done]
    own = {
        name: value
        for name, value in sorted(vars(kind).items())
        if isinstance(value, FunctionType) or not name.startswith(("_abc", "__"))
    }
    members = {name: value for name, value in own.items() if not _is_slot(value)}
    return _name(kind), [list(kind.__bases__), members]


def _is_slot(value: object) -> bool:
    return type(value).__name__ in ("member_descriptor", "getset_descriptor")


def _function(function: FunctionType) -> tuple[str, list[object]]:
    text, names = _code_digest(function.__code__)
    inner = function.__dict__.get("__wrapped__")
    cells = [] if function.__closure__ is None else [one.cell_contents for one in function.__closure__]
    children: list[object] = [function.__defaults__, function.__kwdefaults__, cells, inner]
    for name in names:
        if name in function.__globals__:
            value = function.__globals__[name]
            children.append(value)
            if isinstance(value, ModuleType) and _is_package_module(value.__name__):
                children += [vars(value)[one] for one in names if one in vars(value)]
    return f"{_name(function)} {text}", children


@functools.lru_cache(maxsize=4096)
def _code_digest(code: CodeType) -> tuple[str, tuple[str, ...]]:
    """Digest of a code object without its location in a file, and the names used by it and nested ones."""
    names = tuple(dict.fromkeys(name for one in _nested(code) for name in one.co_names))
    text = " ".join(
        f"{one.co_name} {one.co_code.hex()} {one.co_exceptiontable.hex()} {one.co_argcount} "
        f"{one.co_kwonlyargcount} {one.co_flags} {one.co_names} {one.co_varnames} {one.co_cellvars} "
        f"{one.co_freevars} {[_constant(value) for value in one.co_consts]}"
        for one in _nested(code)
    )
    return hashlib.sha256(text.encode()).hexdigest(), names


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _nested(value)


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return "code"
    if isinstance(value, frozenset):
        return f"set {sorted(map(repr, value))}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return repr(value)
