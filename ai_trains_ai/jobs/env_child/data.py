"""Typed data classes as pydantic reads them, with the standard library alone. Runs inside the sandbox.

The real library's TaskData and config classes are pydantic models. This covers what environments use of them:
annotated fields with defaults, keyword construction, pydantic's lenient conversions ("5" and 5.0 for an int
field), nested models from dicts, `model_copy`, `model_dump`. It has no `Field`, validators or aliases:
pydantic itself cannot be imported in the sandbox.
"""

from __future__ import annotations

import copy
import types
import typing
from typing import Any, ClassVar

_MISSING = object()
_PLAIN = (types.FunctionType, property, classmethod, staticmethod, type)
_TRUE, _FALSE = {"1", "true", "t", "yes", "y", "on"}, {"0", "false", "f", "no", "n", "off"}
_SEQUENCES: dict[Any, type] = {list: list, set: set, frozenset: frozenset, tuple: tuple}


class DataError(ValueError):
    """A value does not fit its field."""


class Record:
    """Base of every data class. `_frozen` forbids assignment; `_extra` is "ignore" or "forbid"."""

    _frozen: ClassVar[bool] = False
    _extra: ClassVar[str] = "ignore"
    _fields: ClassVar[dict[str, tuple[Any, Any]] | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._fields = None
        annotated = cls.__annotations__  # the class's own, even when a base has some
        for name, value in list(vars(cls).items()):
            if not (name.startswith("_") or name in annotated or isinstance(value, _PLAIN)):
                raise TypeError(f"{cls.__name__}.{name} needs a type annotation, like `{name}: int = …`")

    def __init__(self, **values: Any) -> None:
        values = self._prepare(values)
        kinds, problems = fields(type(self)), []
        for name, (kind, default) in kinds.items():
            given = values.pop(name, _MISSING)
            try:
                if given is not _MISSING:
                    given = convert(given, kind, f"{type(self).__name__}.{name}")
                elif default is _MISSING:
                    raise DataError(f"{type(self).__name__}.{name} is required")
                else:
                    given = copy.deepcopy(default)
            except DataError as error:
                problems.append(str(error))
                continue
            self.__dict__[name] = given
        if values and self._extra == "forbid":
            known = ", ".join(kinds) or "no fields"
            problems += [f"{type(self).__name__} has no field {name!r}; it has: {known}" for name in values]
        if problems:
            raise DataError("; ".join(problems))

    @classmethod
    def _prepare(cls, values: dict[str, Any]) -> dict[str, Any]:
        return dict(values)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._frozen:
            raise DataError(
                f"{type(self).__name__} is frozen: {name} cannot be assigned; use model_copy(update=…)"
            )
        if not name.startswith("_") and name not in fields(type(self)):
            raise DataError(f"{type(self).__name__} has no field {name!r}")
        self.__dict__[name] = value

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.__dict__.items())})"

    def model_copy(self, *, update: dict[str, Any] | None = None) -> Any:
        """A shallow copy with `update` applied unchecked, as pydantic does."""
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__, **(update or {}))
        return clone

    def model_dump(self) -> dict[str, Any]:
        """Fields as plain data, nested models as dicts."""
        return {name: _plain(self.__dict__[name]) for name in fields(type(self))}


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.model_dump()
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(_plain(item) for item in value)
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def fields(cls: type[Record]) -> dict[str, tuple[Any, Any]]:
    """Field name -> (type, default or _MISSING), bases first. Resolved at first use: types may come later."""
    if cls._fields is None:
        try:
            hints = typing.get_type_hints(cls)
        except NameError as error:
            raise DataError(f"{cls.__name__}: a field's type is not defined: {error}") from None
        cls._fields = {
            name: (kind, getattr(cls, name, _MISSING))
            for name, kind in hints.items()
            if not name.startswith("_") and kind is not ClassVar and typing.get_origin(kind) is not ClassVar
        }
    return cls._fields


def convert(value: Any, kind: Any, where: str) -> Any:
    """Return `value` as a `kind`, the way pydantic reads it, or raise DataError naming the field."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or isinstance(kind, typing.TypeVar):
        return value
    if origin is typing.Union or origin is types.UnionType:
        return _one_of(value, args, where)
    if origin is typing.Literal:
        if any(value == choice and type(value) is type(choice) for choice in args):
            return value
        raise _wrong(value, " or ".join(map(repr, args)), where)
    if kind is None or kind is type(None):
        if value is None:
            return None
        raise _wrong(value, "None", where)
    if hasattr(kind, "__supertype__"):  # NewType
        return convert(value, kind.__supertype__, where)
    base = origin or kind
    if base in _SEQUENCES:
        return _sequence(value, base, args, where)
    if base is dict:
        return _mapping(value, args, where)
    if base in _SCALARS:
        return _SCALARS[base](value, where)
    if isinstance(base, type) and issubclass(base, Record) and isinstance(value, dict):
        return base(**value)
    if not isinstance(base, type) or isinstance(value, base):
        return value
    raise _wrong(value, getattr(base, "__name__", str(base)), where)


def _one_of(value: Any, kinds: tuple[Any, ...], where: str) -> Any:
    """A member that fits without conversion wins; else the first that can be converted."""
    for kind in kinds:
        exact = type(value) is (typing.get_origin(kind) or kind)
        if exact or (kind is type(None) and value is None):
            try:
                return convert(value, kind, where)
            except DataError:
                continue
    for kind in kinds:
        try:
            return convert(value, kind, where)
        except DataError:
            continue
    raise _wrong(value, " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds), where)


def _sequence(value: Any, base: type, args: tuple[Any, ...], where: str) -> Any:
    if isinstance(value, str | bytes | dict) or not hasattr(value, "__iter__"):
        raise _wrong(value, base.__name__, where)
    items = list(value)
    if base is tuple and args and args[-1] is not Ellipsis:
        if len(items) != len(args):
            raise _wrong(value, f"a tuple of {len(args)}", where)
        return tuple(
            convert(item, kind, f"{where}[{i}]")
            for i, (item, kind) in enumerate(zip(items, args, strict=True))
        )
    if not args:
        return base(items)
    return base(convert(item, args[0], f"{where}[{i}]") for i, item in enumerate(items))


def _mapping(value: Any, args: tuple[Any, ...], where: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _wrong(value, "dict", where)
    if not args:
        return dict(value)
    return {convert(k, args[0], where): convert(v, args[1], f"{where}[{k!r}]") for k, v in value.items()}


def _to_str(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    raise _wrong(value, "str", where)


def _to_int(value: Any, where: str) -> int:
    if isinstance(value, int | str) or (
        isinstance(value, float) and value.is_integer() and abs(value) < 2**63
    ):
        whole, dot, rest = value.partition(".") if isinstance(value, str) else (value, "", "")
        try:
            return int(value if rest.strip("0") or (dot and not rest) else whole)
        except ValueError:
            pass
    raise _wrong(value, "int", where)


def _to_float(value: Any, where: str) -> float:
    if isinstance(value, int | float | str):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise _wrong(value, "float", where)


def _to_bool(value: Any, where: str) -> bool:
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise _wrong(value, "bool", where)


_SCALARS: dict[type, Any] = {str: _to_str, int: _to_int, float: _to_float, bool: _to_bool}


def _wrong(value: Any, wanted: str, where: str) -> DataError:
    return DataError(f"{where} must be {wanted}, not {str(value)[:60]!r} ({type(value).__name__})")
