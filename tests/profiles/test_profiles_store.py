"""The store's format: what loads, what it means, and how every mistake is told."""

from __future__ import annotations

import copy
import json
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_samples import (
    BARE_ROW,
    DIGEST,
    FOREIGN,
    FULL_ROW,
    OLD_ROW,
    document,
    json_values,
    parse,
    problems,
    stores,
)

from narwhal.config import Profiles
from narwhal.model import ConfigError
from narwhal.profiles import (
    HandoffCurve,
    PrefillCurve,
    ProfileStore,
    Range,
    check_limits,
    generation_digest,
    parse_store,
    store_bytes,
)
from narwhal.profiles.rows import Fields

# What loads


def test_a_full_row() -> None:
    store = parse(document(FULL_ROW), ["d0"])
    (row,) = store.rows
    known = row.profile
    assert (known.prefill.a, known.prefill.b, known.prefill.c) == (0.0, 1e-6, 0.001)
    assert (known.decode.t0, known.decode.tr, known.decode.tk) == (0.001, 2.5e-4, 1e-9)
    assert known.prefill.tokens == Range(16, 32_768)
    assert (known.decode.requests, known.decode.kv_tokens) == (Range(1, 1024), Range(1, 10**6))
    assert (known.prefill.fit_mape, known.prefill.cv_mape) == (0.02, 0.03)
    assert (known.decode.fit_mape, known.decode.cv_mape) == (0.01, 0.01)
    assert known.handoff == HandoffCurve(base_s=0.01, token_s=1e-5)
    assert known.kv_capacity_tokens == 10**6
    assert (row.bound, row.generation_digest) == (True, DIGEST)
    assert store.row("d0") is row
    assert store.row("d1") is None
    assert store.profiles == {"d0": known}
    assert store.meta == {"by": "me"}


def test_a_row_of_the_other_program() -> None:
    (row,) = parse(document(OLD_ROW)).rows
    assert row.profile.decode.tr == 0.0
    assert (row.profile.prefill.tokens, row.profile.handoff) == (None, None)
    assert (row.bound, row.generation_digest) == (False, FOREIGN)


def test_a_row_with_nothing_but_coefficients() -> None:
    (row,) = parse(document(BARE_ROW)).rows
    decode = row.profile.decode
    assert (decode.requests, decode.kv_tokens, decode.fit_mape, decode.cv_mape) == (None,) * 4
    assert row.profile.kv_capacity_tokens is None
    assert (row.bound, row.generation_digest) == (False, None)
    optional = [field.name for field in attrs.fields(Fields) if field.default is None]
    assert parse(document(BARE_ROW | dict.fromkeys(optional))).rows == (row,)


def test_meta_may_be_absent_and_rows_may_be_none() -> None:
    bare = document()
    del bare["meta"]
    assert parse(bare) == ProfileStore()


def test_whole_numbers_stand_for_numbers() -> None:
    (row,) = parse(document(BARE_ROW | {"ttft_a": 0, "ttft_c": 1})).rows
    assert type(row.profile.prefill.c) is float


@given(stores)
@settings(deadline=None)
def test_what_is_written_is_read(store: ProfileStore) -> None:
    content = store_bytes(store)
    again = parse_store(content, name="p.json", iids=[row.iid for row in store.rows])
    assert again == store
    assert store_bytes(again) == content


def test_equal_stores_are_equal_bytes() -> None:
    one, other = BARE_ROW | {"iid": "a"}, BARE_ROW | {"iid": "b", "ttft_a": -0.0}
    first = parse(document(one, other, meta={"x": {"c": 1, "b": 2}, "a": 3}))
    second = parse(document(other | {"ttft_a": 0}, one, meta={"a": 3, "x": {"b": 2, "c": 1}}))
    assert first == second
    assert store_bytes(first) == store_bytes(second)


def test_zero_has_no_sign_in_a_file() -> None:
    curve = PrefillCurve(a=-0.0, b=0.0, c=-0.0)
    row = parse(document(BARE_ROW)).rows[0]
    row = attrs.evolve(row, profile=attrs.evolve(row.profile, prefill=curve))
    assert b"-0.0" not in store_bytes(ProfileStore(rows=(row,)))


def test_a_single_point_is_a_range() -> None:
    row = FULL_ROW | {"decode_min_requests": 8, "decode_max_requests": 8}
    assert parse(document(row)).rows[0].profile.decode.requests == Range(8, 8)


def test_rows_are_replaced_by_name() -> None:
    store = parse(document(BARE_ROW, BARE_ROW | {"iid": "d1"}))
    (new,) = parse(document(FULL_ROW | {"iid": "d1"})).rows
    (added,) = parse(document(FULL_ROW | {"iid": "a0"})).rows
    changed = store.with_rows([new, added])
    assert changed.rows == (added, store.rows[0], new)
    assert changed.meta == store.meta


def test_a_store_has_each_engine_once() -> None:
    (row,) = parse(document(BARE_ROW)).rows
    with pytest.raises(ConfigError, match="one row for each engine"):
        ProfileStore(rows=(row, row))


# What is refused

TEXT = json.dumps(document(FULL_ROW))
HERE = "p.json: profiles[0] (d0)"

AGAIN = ": measure the engine again"
BOTH = ": give both, or neither if it was not measured"

BAD_FIELDS: list[tuple[str, Any, str]] = [
    ("ttft_a", True, "must be a number, not true"),
    ("ttft_a", "1", 'must be a number, not "1"'),
    ("ttft_a", None, "must be a number, not null"),
    ("ttft_b", -1e-9, "must be zero or positive, not -1e-09"),
    ("ttft_c", [1], "must be a number, not a list"),
    ("tpot_slope", 0, "must be positive, not 0"),
    ("tpot_slope", {}, "must be a number, not an object"),
    ("tpot_intercept", -1, "must be zero or positive, not -1"),
    ("tpot_request_slope", -1, "must be zero or positive, not -1"),
    ("kv_capacity_tokens", 0, "must be at least 1, not 0"),
    ("kv_capacity_tokens", 1.5, "must be an integer, not 1.5"),
    ("kv_capacity_tokens", 2**53, "must be at most 9007199254740991 in size, not 9007199254740992"),
    ("decode_min_requests", 0, "must be at least 1, not 0"),
    ("decode_max_requests", False, "must be an integer, not false"),
    ("decode_min_requests", 1025, f"must be at most decode_max_requests (1024), not 1025{AGAIN}"),
    ("decode_min_kv_tokens", -1, "must be zero or positive, not -1"),
    ("prefill_min_tokens", 32_769, f"must be at most prefill_max_tokens (32768), not 32769{AGAIN}"),
    ("prefill_max_tokens", None, f"is missing beside prefill_min_tokens{BOTH}"),
    ("handoff_base_s", None, f"is missing beside handoff_token_s{BOTH}"),
    ("decode_fit_mape", -0.1, "must be zero or positive, not -0.1"),
    ("decode_cv_mape", "small", 'must be a number, not "small"'),
    ("generation_digest", 7, "must be text in quotes, not 7"),
    ("generation_digest", "", 'must not be empty: ""'),
    ("generation_digest", DIGEST[:-1], "is cut or changed (without it, the row counts as unbound): "
     '"generation-1:sha256:' + DIGEST[20:57] + '..."'),
    ("tpot_slop", 1, "is not a known key; did you mean tpot_slope?"),
    ("remark", 1, "is not a known key; what is not measured belongs into meta"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "complaint"), BAD_FIELDS)
def test_a_bad_field(field: str, value: Any, complaint: str) -> None:
    assert problems(document(FULL_ROW | {field: value})) == [f"{HERE}.{field} {complaint}"]


@pytest.mark.parametrize("field", ["ttft_a", "ttft_b", "ttft_c", "tpot_intercept", "tpot_slope"])
def test_a_missing_coefficient(field: str) -> None:
    row = {key: value for key, value in FULL_ROW.items() if key != field}
    assert problems(document(row)) == [f"{HERE}.{field} is missing: it has to be given"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400])
def test_a_number_that_is_none(number: str) -> None:
    for field in ("ttft_a", "tpot_slope", "decode_fit_mape", "decode_max_requests"):
        text = json.dumps(document(FULL_ROW | {field: "HERE"})).replace('"HERE"', number)
        (line,) = problems(text.encode())
        assert line.startswith(f"{HERE}.{field} must be a finite number, not ")


NAME = (
    "must be 1 to 64 letters, digits, '.', '_', ':' or '-', a letter or digit first (it becomes "
    "a metric label)"
)

BAD_WHOLES: list[tuple[Any, str]] = [
    (b"", "is not valid JSON: line 1, column 1: Expecting value"),
    (b"\xff", "is not UTF-8 text: byte 0xff in line 1"),
    ([], "must be an object, not a list"),
    (document(schema="narwhal.fleet"),
     'schema must be "narwhal.profiles", not "narwhal.fleet": this is another kind of file'),
    (document(schema_version=2), "schema_version must be 1, not 2: no other version can be read"),
    (document(schema_version=True),
     "schema_version must be 1, not true: no other version can be read"),
    (document(schema_version=1.0),
     "schema_version must be 1, not 1.0: no other version can be read"),
    (document(meta=[]), "meta must be an object, not a list: empty it"),
    (document(profile=[]), "profile is not a known key; did you mean profiles?"),
    (document(_note=1), "_note is not a known key; notes belong into meta"),
    (document(profiles={}), "profiles must be a list, not an object"),
    (document(profiles=None), "profiles must be a list, not null"),
    (document("x"),  # type: ignore[arg-type]  # that is the point
     'profiles[0] must be an object, not "x"'),
    (document(BARE_ROW | {"iid": "no good"}),
     f'profiles[0].iid {NAME}, not "no good"'),
    (document(BARE_ROW, BARE_ROW),
     "profiles[1] (d0).iid must be unique: profiles[0] has the same; take one of them out"),
    (b'{"schema":"narwhal.profiles","schema":"narwhal.profiles","schema_version":1,"profiles":[]}',
     "schema is given more than once in the same object"),
    (TEXT.replace('"ttft_a"', '"ttft_b": 1, "ttft_a"').encode(),
     "profiles[0] (d0).ttft_b is given more than once in the same object"),
    (TEXT.replace('"by"', '"by": 1, "by"').encode(),
     "meta.by is given more than once in the same object"),
    (TEXT.replace('"me"', "NaN").encode(), "meta.by must be a finite number, not NaN"),
    (b'{"meta":' + b"[" * 99 + b"]" * 99 + b"}", "is nested more than 64 levels deep"),
]  # fmt: skip


@pytest.mark.parametrize(("whole", "complaint"), BAD_WHOLES)
def test_a_bad_whole(whole: Any, complaint: str) -> None:
    assert problems(whole) == [f"p.json: {complaint}"]


@pytest.mark.parametrize("key", ["schema", "schema_version", "profiles"])
def test_a_missing_key(key: str) -> None:
    whole = document(BARE_ROW)
    del whole[key]
    (line,) = problems(whole)
    assert line.startswith(f"p.json: {key} ")
    assert "is missing" in line


def test_the_engines_are_those_of_the_fleet() -> None:
    store = document(BARE_ROW, BARE_ROW | {"iid": "x9"})
    assert problems(store, ["d0", "d1"]) == [
        "p.json: profiles[1] (x9).iid is no engine of the fleet: take it out, or mend its name",
        'p.json: profiles has nothing about engine "d1" of the fleet: measure it',
    ]
    assert problems(document(), ["d0"]) == [
        'p.json: profiles has nothing about engine "d0" of the fleet: measure it'
    ]
    assert problems(store, ["x9", "d0"]) == []


def test_all_mistakes_are_told_at_once() -> None:
    bad = FULL_ROW | {"ttft_a": -1, "decode_min_requests": 9999, "tpot_slope": 0, "x": 1}
    lines = problems(document(bad, BARE_ROW | {"iid": "d1", "ttft_c": True}, schema="x"), ["d2"])
    places = [line.removeprefix("p.json: ").split(" must")[0].split(" is ")[0] for line in lines]
    assert places == [
        "schema",
        "profiles[0] (d0).x",
        "profiles[0] (d0).ttft_a",
        "profiles[0] (d0).tpot_slope",
        "profiles[0] (d0).decode_min_requests",
        "profiles[1] (d1).ttft_c",
        "profiles[0] (d0).iid",
        "profiles[1] (d1).iid",
        'profiles has nothing about engine "d2" of the fleet: measure it',
    ]


@pytest.mark.parametrize("length", range(len(TEXT)))
def test_a_file_that_was_cut(length: int) -> None:
    (line,) = problems(TEXT[:length].encode())
    assert line.startswith("p.json: is not valid JSON: line 1, column ")


PAIRS = {
    name: pair
    for pair in (
        ("prefill_min_tokens", "prefill_max_tokens"),
        ("decode_min_requests", "decode_max_requests"),
        ("decode_min_kv_tokens", "decode_max_kv_tokens"),
        ("handoff_base_s", "handoff_token_s"),
    )
    for name in pair
}


def is_good(name: str, value: Any) -> bool:
    """Whether `value` may stand in a field, by the rules as they are written down."""
    if value is None:
        return name not in {"iid", "ttft_a", "ttft_b", "ttft_c", "tpot_intercept", "tpot_slope"}
    if name in {"iid", "generation_digest"}:
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if name.endswith(("_tokens", "_requests")):
        return isinstance(value, int) and 0 <= value < 2**53
    return value > 0 if name == "tpot_slope" else value >= 0


@given(
    st.sampled_from(sorted(FULL_ROW)),
    json_values
    | st.sampled_from([float("nan"), float("inf"), -1, True, "1", 0, 2**53, 10**400, -0.0]),
)
@settings(deadline=None, max_examples=300)
def test_a_good_store_with_one_other_value(field: str, value: Any) -> None:
    whole = document(FULL_ROW | {field: value})
    lines = problems(whole)
    if not lines:
        assert is_good(field, value)
        return
    place = "p.json: profiles[0]" if field == "iid" else HERE
    places = {f"{place}.{field}"} | {f"{place}.{name}" for name in PAIRS.get(field, ())}
    assert all(line.startswith(tuple(places)) and line.isprintable() for line in lines)


@st.composite
def damaged(draw: st.DrawFn) -> object:
    """A store in which a few places hold something else, or under another name."""
    whole: Any = copy.deepcopy(document(FULL_ROW, OLD_ROW | {"iid": "d1"}))
    for _ in range(draw(st.integers(1, 3))):
        holder = draw(st.sampled_from([whole, *(whole.get("profiles") or [])]))
        if not isinstance(holder, dict) or not holder:
            continue
        key = draw(st.sampled_from(sorted(holder)))
        value = holder.pop(key)
        if draw(st.booleans()):
            holder[key] = draw(json_values)
        else:
            holder[draw(st.text(max_size=8))] = value
        if not isinstance(whole.get("profiles"), list):
            break
    return whole


@given(damaged())
@settings(deadline=None, max_examples=200)
def test_a_damaged_store(whole: object) -> None:
    lines = problems(whole, ["d0", "d1"])
    assert all(line.startswith("p.json: ") and line.isprintable() for line in lines)
    if not lines:
        store = parse(whole)
        assert parse_store(store_bytes(store), name="p.json", iids=["d0", "d1"]) == store


@given(st.binary() | st.text().map(str.encode))
@settings(deadline=None)
def test_any_bytes(content: bytes) -> None:
    assert problems(content)[0].startswith("p.json: ")


# Limits and digests


def test_errors_beyond_the_limits_of_the_fleet_file() -> None:
    rows = [
        OLD_ROW | {"iid": "a", "decode_fit_mape": 0.05, "decode_cv_mape": 0.13},
        OLD_ROW | {"iid": "b", "decode_fit_mape": 0.0501},
        OLD_ROW | {"iid": "c", "decode_cv_mape": 0.2},
        BARE_ROW | {"iid": "d"},
    ]
    broken = check_limits(parse(document(*rows)), Profiles())
    assert [(each.iid, each.field, each.error) for each in broken] == [
        ("b", "decode_fit_mape", 0.0501),
        ("c", "decode_cv_mape", 0.2),
        ("d", "decode_fit_mape", None),
        ("d", "decode_cv_mape", None),
    ]
    assert broken[0].line("p.json") == (
        "p.json: b.decode_fit_mape is 0.0501, and profiles.max_decode_fit_mape allows 0.05: "
        "measure the engine again, or raise the limit"
    )
    assert "c.decode_cv_mape is 0.2, and profiles.max_decode_cv_mape allows 0.13" in broken[1].line(
        "p.json"
    )
    assert "d.decode_cv_mape is not known, and" in broken[3].line("p.json")
    assert check_limits(parse(document(rows[1])), Profiles(max_decode_fit_mape=0.06)) == ()


def test_a_digest_is_of_what_changes_speed() -> None:
    known = generation_digest("1", "m", {"a": 1, "b": [2]})
    assert known == generation_digest("1", "m", {"b": [2], "a": 1})
    others = [
        generation_digest("2", "m", {"a": 1, "b": [2]}),
        generation_digest("1", "n", {"a": 1, "b": [2]}),
        generation_digest("1", "m", {"a": 1, "b": [3]}),
        generation_digest("1", "m", None),
        generation_digest("m", "1", None),
    ]
    assert len({known, *others}) == 6
    assert generation_digest("1", "m", None) == generation_digest("1", "m", {})


def test_a_digest_stays_what_it_is() -> None:
    assert generation_digest("0.32.0", "m", {"dtype": "bfloat16"}) == (
        "generation-1:sha256:4a05cf5ce4de8a57a7d71e038b1a2d0ca7cd062bbb351f39eb15cf711f292dc5"
    ), "rows that were written before would no longer be bound"
