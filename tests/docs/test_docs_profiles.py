"""The page about profiles: its fields, its example and its numbers."""

from __future__ import annotations

import re

import attrs
import pytest
from docs_pages import DOCS, code_blocks, section, table

from narwhal.config.settings import is_required
from narwhal.model import ConfigError
from narwhal.profiles import EngineSamples, FitLimits, Measured, generation_digest, parse_store
from narwhal.profiles.rows import Fields

PAGE = (DOCS / "profiles.md").read_text(encoding="utf-8")


def test_the_fields_are_those_of_a_row() -> None:
    rows = table(PAGE, "## The store")
    named = {name: row for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    fields = {field.name: field for field in attrs.fields(Fields)}
    assert named.keys() == fields.keys()
    for name, row in named.items():
        assert row[1].startswith("required") == is_required(fields[name])
        assert bool(row[3]) != is_required(fields[name]), "what if it is missing?"


def test_the_fields_of_samples_are_those_that_are_read() -> None:
    names = {
        name for row in table(PAGE, "## The samples") for name in re.findall(r"`(\w+)`", row[0])
    }
    lists = {field.name for field in attrs.fields(EngineSamples)} - {"engine"}
    assert names == {field.name for field in attrs.fields(Measured)} | lists


def test_the_example_loads_and_the_messages_are_real() -> None:
    store, messages = code_blocks(section(PAGE, "## The store"))
    (row,) = parse_store(store.encode(), name="profiles.json", iids=["d0"]).rows
    assert row.profile.idle_interval() == pytest.approx(7.05e-3)
    bad = store.replace('"tpot_slope": 55e-9', '"tpot_slope": 0')
    with pytest.raises(ConfigError) as caught:
        parse_store(bad.encode(), name="profiles.json", iids=["d0", "d1"])
    assert caught.value.problems == tuple(messages.splitlines())


def test_the_numbers() -> None:
    limits = FitLimits()
    text = " ".join(PAGE.split())
    assert f"off by more than {limits.mean:.0%} on average, or by more than {limits.worst:.0%}" in (
        text
    )
    assert generation_digest("1", "m", None).startswith("generation-1:")
