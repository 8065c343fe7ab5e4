"""The sandbox's data classes accept, refuse and convert as pydantic does, on generated values."""

from __future__ import annotations

from typing import Any, Literal

from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from ai_trains_ai.jobs.env_child.data import DataError, Record

FIELDS: dict[str, Any] = {
    "a_text": str,
    "a_whole": int,
    "a_real": float,
    "a_flag": bool,
    "some_texts": list[str],
    "some_wholes": list[int],
    "a_pair": tuple[int, str],
    "many": tuple[float, ...],
    "a_set": set[int],
    "a_table": dict[str, float],
    "deep": dict[str, list[int]],
    "either": int | str,
    "perhaps": str | None,
    "choice": Literal["a", "b", 3],
    "any_list": list,
    "any_table": dict,
}

Ours = type("Ours", (Record,), {"__annotations__": FIELDS, "__module__": __name__})
Theirs: Any = type("Theirs", (BaseModel,), {"__annotations__": FIELDS, "__module__": __name__})

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text(max_size=5),
    st.sampled_from(["1", "-3", "2.5", "2.0", "true", "Yes", "off", "a", "b", "1e3", "", " 5"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.sets(SCALARS, max_size=3),
    ),
    max_leaves=6,
)


def outcome(model: Any, field: str, value: Any) -> Any:
    kinds = {name: kind for name, kind in FIELDS.items() if name == field}
    cls = type("One", (model,), {"__annotations__": kinds, "__module__": __name__})
    try:
        return getattr(cls(**{field: value}), field)
    except (DataError, ValidationError):
        return "refused"


@given(st.sampled_from(sorted(FIELDS)), VALUES)
@example("a_whole", "5")
@example("a_whole", 5.0)
@example("a_flag", 1.0)
@example("either", "5")
@example("a_set", [1, "1"])
@example("some_wholes", ["0.0", False, 2.0**63])
def test_same_outcome_as_pydantic(field: str, value: Any) -> None:
    ours, theirs = outcome(Record, field, value), outcome(BaseModel, field, value)
    assert ours == theirs, (field, value)
    assert type(ours) is type(theirs), (field, value)
