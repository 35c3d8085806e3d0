"""What an engine's `/metrics` says of its work, its memory and its process."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs
from prometheus_client.parser import text_string_to_metric_families

from narwhal.model import EngineProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client.samples import Sample

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_PROMPT_TOKENS = "vllm:prompt_tokens_total"
_PROCESS_START = re.compile(
    rb"^process_start_time_seconds(?:\{[^}]*\})? ([0-9.eE+]+)", re.MULTILINE
)
_CACHE_LINE = re.compile(rb"^vllm:cache_config_info\{(.*)\} [0-9.eE+]+", re.MULTILINE)
_LABEL = re.compile(rb'(\w+)="([^"\\]*)"')
_KV_USAGE = "vllm:kv_cache_usage_perc"
_TRANSFERS = "vllm:nixl_bytes_transferred_count"
_TRANSFERRED_BYTES = "vllm:nixl_bytes_transferred_sum"
_BY_SOURCE = "vllm:prompt_tokens_by_source_total"
_EXTERNAL = "external_kv_transfer"
_FAILED = "vllm:nixl_num_failed_transfers_total"
_EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"


@attrs.frozen(kw_only=True)
class Gauges:
    """One reading; where engines run in ranks, the sum over them. None: the engine does not say."""

    running: int | None
    """Requests that run."""
    waiting: int | None
    """Requests that wait to run."""
    prompt_tokens: int | None
    """Tokens of all prompts since the process started."""
    kv_capacity_tokens: int | None
    """KV tokens that its memory holds."""
    process_start_s: float | None
    """When its process started, Unix time."""


@attrs.frozen(kw_only=True)
class KvCounters:
    """One reading of what became of KV cache; over ranks, the sum. None: it does not say.

    By these counters an engine itself shows that KV came from another one: an answer alone does
    not, as a decoder without it may have computed the prompt.
    """

    usage: float | None
    """Share of its KV memory that requests and handoffs hold, 0 to 1; of ranks, the greatest."""
    transfers: int | None
    """Transfers from other engines."""
    transferred_bytes: int | None
    external_tokens: int | None
    """Prompt tokens whose KV came from another engine."""
    failed_transfers: int | None
    expired: int | None
    """Handoffs of its own that nobody pulled before their lease ended."""


@attrs.frozen(kw_only=True)
class Process:
    """What `/metrics` says of an engine that stays as it is for as long as its process runs."""

    start_s: float | None
    """When it started, Unix time; None: not told."""
    cache: Mapping[str, str]
    """How its KV cache is set up, as it writes it: `block_size`, `cache_dtype`, ....

    Where it runs in ranks that differ, what all of them say, with commas between.
    """
    kv_capacity_tokens: int | None
    """KV tokens that its memory holds; None: not told."""


def read_process(page: bytes) -> Process:
    """Look up these few lines of a page in the Prometheus text format.

    The rest is not read: a page can have a thousand lines, and engines are asked for it often.
    """
    started = _PROCESS_START.search(page)
    cache: dict[str, list[str]] = {}
    capacity: int | None = 0
    for line in _CACHE_LINE.finditer(page):
        rank = {name.decode(): value.decode("utf-8", "replace")
                for name, value in _LABEL.findall(line[1])}  # fmt: skip
        for name, value in rank.items():
            if value not in (said := cache.setdefault(name, [])):
                said.append(value)
        blocks, size = rank.get("num_gpu_blocks", ""), rank.get("block_size", "")
        told = capacity is not None and blocks.isdecimal() and size.isdecimal()
        capacity = (capacity or 0) + int(blocks) * int(size) if told else None
    try:
        start = None if started is None else float(started[1])
    except ValueError as error:
        raise EngineProtocolError("/metrics has a process start that is no number") from error
    joined = {name: ",".join(values) for name, values in cache.items()}
    return Process(start_s=start, cache=joined, kv_capacity_tokens=capacity or None)


def read_gauges(page: bytes) -> Gauges:
    """Read a page in the Prometheus text format; `EngineProtocolError` if it is none."""
    try:
        samples = _samples(page)
        process = read_process(page)
        return Gauges(
            running=_count(samples, _RUNNING),
            waiting=_count(samples, _WAITING),
            prompt_tokens=_count(samples, _PROMPT_TOKENS),
            kv_capacity_tokens=process.kv_capacity_tokens,
            process_start_s=process.start_s,
        )
    except _UNREADABLE as error:
        raise _no_page(error) from None


def read_kv_counters(page: bytes) -> KvCounters:
    """The same for KV cache; `EngineProtocolError` if the page is none."""
    try:
        samples = _samples(page)
        usage = [each.value for each in samples.get(_KV_USAGE, ())]
        return KvCounters(
            usage=max(usage, default=None),
            transfers=_count(samples, _TRANSFERS),
            transferred_bytes=_count(samples, _TRANSFERRED_BYTES),
            external_tokens=_count(samples, _BY_SOURCE, source=_EXTERNAL),
            failed_transfers=_count(samples, _FAILED),
            expired=_count(samples, _EXPIRED),
        )
    except _UNREADABLE as error:
        raise _no_page(error) from None


_UNREADABLE = (ValueError, KeyError, IndexError, OverflowError)
"""What the parser raises for text that is not in the format, and numbers that are none."""


def _no_page(error: Exception) -> EngineProtocolError:
    return EngineProtocolError(f"/metrics is not in the Prometheus format: {error}")


def _samples(page: bytes) -> dict[str, list[Sample]]:
    """All samples of the page, by name."""
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(page.decode()):
        for each in family.samples:
            found.setdefault(each.name, []).append(each)
    return found


def _count(samples: Mapping[str, list[Sample]], name: str, **labels: str) -> int | None:
    values = [
        int(each.value)
        for each in samples.get(name, ())
        if all(each.labels.get(label) == value for label, value in labels.items())
    ]
    return sum(values) if values else None
