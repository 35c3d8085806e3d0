"""What `/metrics` of an engine says."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.engine.gauges import Gauges, read_gauges
from narwhal.model import EngineProtocolError

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
vllm:num_requests_running{engine="1",model_name="tiny"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 1.5e3
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",engine="0",num_gpu_blocks="63"} 1.0
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.76431e+09
"""


def test_a_page_as_engines_write_it() -> None:
    assert read_gauges(PAGE.encode()) == Gauges(
        running=3,
        waiting=0,
        prompt_tokens=1500,
        kv_capacity_tokens=63 * 128,
        process_start_s=1.76431e9,
    )


def test_what_is_not_there_is_not_made_up() -> None:
    nothing = Gauges(
        running=None, waiting=None, prompt_tokens=None, kv_capacity_tokens=None,
        process_start_s=None,
    )  # fmt: skip
    assert read_gauges(b"") == nothing
    unknown = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n'
    assert read_gauges(unknown) == nothing


@pytest.mark.parametrize(
    "page",
    [b"\xff\xfe", b"{}", b"vllm:num_requests_running{ 1", b"vllm:num_requests_running NaN\n"],
)
def test_what_is_no_page_is_an_error_of_the_engine(page: bytes) -> None:
    with pytest.raises(EngineProtocolError, match="/metrics"):
        read_gauges(page)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_a_reading_or_that_error(page: bytes) -> None:
    with contextlib.suppress(EngineProtocolError):
        read_gauges(page)
