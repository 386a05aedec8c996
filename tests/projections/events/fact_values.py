"""A hypothesis strategy for every kind of fact, made from its annotations."""

from __future__ import annotations

import types
import typing
from typing import Any

from hypothesis import strategies as st

from projections.events.kinds import FACT_KINDS, INNER

I64_MIN = -(1 << 63)
U64_MAX = (1 << 64) - 1


def facts() -> st.SearchStrategy[tuple[Any, ...]]:
    """Any fact of any kind."""
    return st.one_of([fact_of(row.fact) for _, row in sorted(FACT_KINDS.items())])


def fact_of(kind: type) -> st.SearchStrategy[Any]:
    """Facts of one type: every field by its annotation, inner tuples by theirs."""
    hints = typing.get_type_hints(kind)
    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    inner = {index: (of, many) for index, of, many in INNER.get(kind, ())}
    fields = []
    for index, name in enumerate(names):
        if index in inner:
            of, many = inner[index]
            value = fact_of(of)
            if many:
                value = st.lists(value, max_size=3).map(tuple)
            elif type(None) in typing.get_args(hints[name]):
                value = st.none() | value
            fields.append(value)
        else:
            fields.append(value_of(hints[name]))
    return st.tuples(*fields).map(kind._make)  # type: ignore[attr-defined]


def value_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return st.one_of([value_of(arg) for arg in args])
    if origin is tuple:
        if args[-1] is Ellipsis:
            return st.lists(value_of(args[0]), max_size=3).map(tuple)
        return st.tuples(*map(value_of, args))
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(I64_MIN, U64_MAX),
        str: st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        bytes: st.binary(max_size=40),
        bool: st.booleans(),
        float: st.floats(allow_nan=False),
        type(None): st.none(),
    }
    return simple[hint]
