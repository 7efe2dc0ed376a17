"""What pydantic finds, told as what, where and how to mend it."""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from rackwright.errors import Problem
from rackwright.settings.yaml_lines import Key


def problems(
    error: ValidationError,
    model: type[BaseModel],
    where: Callable[[Key], str],
    *,
    skip: Callable[[Any], bool] = lambda detail: False,
) -> list[Problem]:
    """Return one problem for each thing that is wrong and not to `skip`; no value of a secret is ever shown."""
    found: dict[Key, list[Problem]] = {}
    for detail in error.errors(include_url=False):
        if skip(detail):
            continue
        key = _without_branches(detail["loc"], model)
        found.setdefault(key, []).append(_problem(detail, key, model, where(key)))
    # A value that fits no branch of a union is reported once for each branch: the first says enough.
    return [several[0] for several in found.values()]


def _without_branches(loc: Sequence[int | str], model: type[BaseModel]) -> Key:
    """Return the path as the file has it: pydantic adds the names of union branches."""
    key: list[str | int] = []
    at: list[Any] = [model]
    for part in loc:
        following = [step for one in at for step in _inside(one, part)]
        if following or part in ("[key]",):
            key.append(part)
            at = following
        elif any(_is_model(one) for one in at) and isinstance(part, str) and not _is_branch(part):
            key.append(part)
            at = []
    return tuple(part for part in key if part != "[key]")


def _is_branch(part: str) -> bool:
    return part in ("str", "int", "float", "bool", "none") or "[" in part or part[:1].isupper()


def _is_model(annotation: Any) -> bool:
    return any(isinstance(one, type) and issubclass(one, BaseModel) for one in _branches(annotation))


def _branches(annotation: Any) -> list[Any]:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return [branch for one in get_args(annotation) for branch in _branches(one)]
    if hasattr(annotation, "__metadata__"):
        return _branches(annotation.__origin__)
    return [annotation]


def _inside(annotation: Any, part: str | int) -> list[Any]:
    """Return the annotations of what `part` names inside a value of `annotation`."""
    found: list[Any] = []
    for branch in _branches(annotation):
        origin = get_origin(branch)
        if isinstance(branch, type) and issubclass(branch, BaseModel):
            if part in branch.model_fields:
                found.append(branch.model_fields[str(part)].annotation)
        elif origin in (dict, Mapping) or (origin is not None and origin.__name__ == "Mapping"):
            found.append(get_args(branch)[1])
        elif isinstance(part, int) and origin in (list, tuple):
            found.append(get_args(branch)[0])
    return found


def _known_keys(model: type[BaseModel], key: Key) -> list[str]:
    at: list[Any] = [model]
    for part in key:
        at = [step for one in at for step in _inside(one, part)]
    return sorted(
        {
            name
            for one in at
            for branch in _branches(one)
            if isinstance(branch, type) and issubclass(branch, BaseModel)
            for name in branch.model_fields
        }
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the cure for a word that is not among `known`."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"one of: {', '.join(names)}" if names else "remove it"


def _name(key: Key) -> str:
    """Return what the wrong thing is called: its key, or which item of which list."""
    if not key:
        return "the file"
    *above, last = key
    return f"{above[-1]}[{last}]" if isinstance(last, int) and above else str(last)


def _problem(detail: Any, key: Key, model: type[BaseModel], where: str) -> Problem:
    kind, value, context = detail["type"], detail.get("input"), detail.get("ctx", {})
    name = _name(key)
    if kind == "extra_forbidden":
        return Problem(f"unknown key {name!r}", where, did_you_mean(name, _known_keys(model, key[:-1])))
    if kind == "missing":
        return Problem(f"{name!r} is missing", where, f"add `{name}: ...`")
    if kind == "string_type" and isinstance(value, (int, float)) and not isinstance(value, bool):
        fix = f'quote it: "{value}" (a number loses its form: 12.10 reads as 12.1)'
        return Problem(f"{name!r} has to be a text and is the number {value}", where, fix)
    if kind == "literal_error" and isinstance(value, str):
        allowed = [word.strip("' ") for word in str(context.get("expected", "")).replace(" or ", ",").split(",")]
        return Problem(f"{name!r} cannot be {value!r}", where, did_you_mean(value, allowed))
    if kind in ("bool_type", "bool_parsing"):
        return Problem(f"{name!r} has to be true or false", where, "write true or false")
    if kind in ("int_type", "int_from_float", "int_parsing"):
        return Problem(f"{name!r} has to be a whole number", where, "write it as digits, without quotes")
    if kind in ("dict_type", "mapping_type", "model_type", "model_attributes_type"):
        keys = _known_keys(model, key)
        fix = f"give it keys: {', '.join(keys)}" if keys else "give it `key: value` lines"
        return Problem(f"{name!r} has to be a mapping", where, fix)
    if kind in ("list_type", "tuple_type"):
        return Problem(f"{name!r} has to be a list", where, "write it as [a, b]")
    message = str(detail["msg"])
    if kind != "rackwright":  # pydantic's own sentences begin with a capital
        message = f"{message[:1].lower()}{message[1:]}"
    fix = str(context.get("fix", "see `rackwright init` for an example, or the schema: `rackwright validate --schema`"))
    return Problem(f"{name!r}: {message}" if key else message, where, fix)
