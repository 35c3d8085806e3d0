"""Fragments put together are the value they were cut from."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.wire.merge import Absent, merge, settle


def together(*fragments: object, key: str = "delta") -> object:
    node: object = Absent
    before = copy.deepcopy(fragments)
    for fragment in fragments:
        node = merge(node, fragment, key)
    assert fragments == before
    return settle(node)


@pytest.mark.parametrize(
    ("fragments", "value"),
    [
        (["a", "b", "", "c"], "abc"),
        ([None, "a", None, "b"], "ab"),
        ([None, None], None),
        ([""], ""),
        ([1, 2], 2),
        ([1, None], 1),
        ([True, False], False),
        ([1.5, "a"], "a"),
        (["a", {"x": 1}], {"x": 1}),
        ([{"x": 1}, ["a"]], ["a"]),
        ([[], None], []),
        ([[1], [], [2, None]], [1, 2, None]),
        ([{"a": "x", "b": None}, {"a": "y", "c": [1]}], {"a": "xy", "b": None, "c": [1]}),
        ([{"a": {"b": {"c": "1"}}}, {"a": {"b": {"c": "2"}}}], {"a": {"b": {"c": "12"}}}),
    ],
)
def test_merging(fragments: list[object], value: object) -> None:
    assert together(*fragments) == value


@pytest.mark.parametrize("key", ["id", "type", "role", "object", "model", "finish_reason"])
def test_strings_that_come_whole(key: str) -> None:
    assert together({key: "a"}, {key: "a"}, {key: ""}, {key: None}) == {key: "a"}
    assert together({key: "a"}, {key: "b"}) == {key: "b"}
    assert together({key: None}, {key: ""}) == {key: ""}


def test_a_name_comes_once_repeated_or_in_fragments() -> None:
    assert together({"name": "get_weather"}, {"name": "get_weather"}) == {"name": "get_weather"}
    assert together({"name": "get_"}, {"name": "weather"}, {"name": ""}) == {"name": "get_weather"}


def test_numbered_items_are_kept_apart_whatever_order_they_come_in() -> None:
    assert together(
        [{"index": 1, "a": "x"}],
        [{"index": 0, "a": "1"}, {"index": 1, "a": "y"}],
        [{"index": 0, "a": "2", "b": 3}],
    ) == [{"index": 0, "a": "12", "b": 3}, {"index": 1, "a": "xy"}]


def test_items_without_a_number_are_items_of_their_own() -> None:
    assert together([{"a": "x"}], [{"a": "y"}]) == [{"a": "x"}, {"a": "y"}]
    assert together([{"a": "x"}], [{"index": 0, "a": "y"}]) == [{"a": "x"}, {"index": 0, "a": "y"}]
    assert together([{"index": 4, "a": "x"}], [{"a": "y"}, 5]) == [
        {"index": 4, "a": "x"},
        {"a": "y"},
        5,
    ]


def test_a_token_named_index_is_a_token() -> None:
    tops = [{"index": 0, "the": -1}, {"index": -2}]
    assert together([tops[0]], [tops[1]], key="top_logprobs") == tops


VALUES = st.recursive(
    st.text(max_size=6),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def fragments(draw: st.DrawFn, value: Any) -> list[Any]:
    """A value cut into fragments as streams do: strings by pieces, objects by what is new."""
    if isinstance(value, str):
        cuts = sorted(draw(st.lists(st.integers(0, len(value)), max_size=3)))
        return [value[a:b] for a, b in zip([0, *cuts], [*cuts, len(value)], strict=True)]
    parts: list[Any] = [{}]
    for key, inner in value.items():
        parts += [{key: part} for part in draw(fragments(inner))]
        if draw(st.booleans()):
            parts.append({key: None})
    return parts


@settings(deadline=None)
@given(value=VALUES, data=st.data())
def test_any_fragments_make_the_value(value: Any, data: st.DataObject) -> None:
    assert together(*data.draw(fragments(value))) == value
