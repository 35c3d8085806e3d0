from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal import model
from narwhal.model import NarwhalError
from narwhal.telemetry.catalogue import CATALOGUE, Metric, buckets
from narwhal.telemetry.codes import CODE_LABELS, ERROR_CODES, code_label
from narwhal.telemetry.kinds import Kind, Scale
from narwhal.telemetry.reference import catalogue_markdown


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_names_follow_the_conventions_of_prometheus(metric: Metric) -> None:
    assert re.fullmatch(r"[a-z][a-z_]*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    stem = metric.name.removesuffix("_total")
    assert stem.endswith("_seconds") == (metric.unit == "seconds")
    assert (metric.scale is not None) == (metric.kind is Kind.HISTOGRAM)
    assert metric.help.endswith((".", "?"))


def test_names_are_unique() -> None:
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names)


def test_only_engines_and_version_are_open_until_the_fleet_is_known() -> None:
    open_labels = {label.name for m in CATALOGUE for label in m.labels if not label.values}
    assert open_labels == {"engine", "version"}


@given(
    scale=st.sampled_from(Scale),
    ttft_s=st.floats(0.001, 1000),
    tpot_s=st.floats(0.0001, 100),
)
def test_buckets_rise_and_have_the_target_as_an_edge(
    scale: Scale, ttft_s: float, tpot_s: float
) -> None:
    edges = buckets(scale, ttft_s=ttft_s, tpot_s=tpot_s)
    assert list(edges) == sorted(set(edges))
    if scale is Scale.LAG:
        return  # it knows no target
    target = {Scale.TPOT: tpot_s, Scale.RATIO: 1.0}.get(scale, ttft_s)
    assert any(edge == pytest.approx(target, rel=1e-5) for edge in edges)


def test_every_code_of_the_exception_tree_is_known() -> None:
    raised = [getattr(model, name) for name in model.__all__]
    codes = {cls.code for cls in raised if isinstance(cls, type) and issubclass(cls, NarwhalError)}
    assert codes - {"internal"} <= set(ERROR_CODES)
    assert "internal" in ERROR_CODES


@given(st.none() | st.text() | st.sampled_from(ERROR_CODES))
def test_a_code_label_is_one_of_the_closed_set(code: str | None) -> None:
    label = code_label(code)
    assert label in CODE_LABELS
    if code in ERROR_CODES:
        assert label == code


def test_codes_outside_the_set_are_other_and_none_is_ok() -> None:
    assert code_label("context_length_exceeded") == "other"
    assert code_label("ok") == "other"
    assert code_label(None) == "ok"


def test_the_reference_page_has_a_line_for_each_metric_and_each_label() -> None:
    page = catalogue_markdown()
    for metric in CATALOGUE:
        assert page.count(f"| `{metric.full_name}` |") == 1
        for label in metric.labels:
            assert re.search(rf"^\| `{label.name}` \| .*`{metric.name}`", page, re.MULTILINE)
