"""The `/metrics` page: the families of vLLM 0.32.0 that a router or a test reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from narwhal.emulator.engine import EmulatedEngine

# Bytes of KV cache per token. Any figure will do: tests look at counts and ratios.
_TOKEN_BYTES = 4096
_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


def metrics_page(engine: EmulatedEngine) -> bytes:
    """The page in the Prometheus text format."""
    return "".join(f"{line}\n" for line in _lines(engine)).encode()


def _lines(engine: EmulatedEngine) -> Iterator[str]:
    core, stats, link = engine.core, engine.stats, engine.connector
    own = f'engine="0",model_name="{_escaped(engine.settings.model)}"'
    yield "# TYPE process_start_time_seconds gauge"
    yield f"process_start_time_seconds {engine.started_at!r}"
    yield from _family("num_requests_running", "gauge", {own: core.running})
    yield from _family("num_requests_waiting", "gauge", {own: core.waiting})
    by_reason = {f'{own},reason="capacity"': core.waiting, f'{own},reason="deferred"': 0}
    yield from _family("num_requests_waiting_by_reason", "gauge", by_reason)
    yield from _family("kv_cache_usage_perc", "gauge", {own: core.pool.usage})
    yield from _family("prompt_tokens", "counter", {own: stats.prompt_tokens + stats.pulled_tokens})
    yield from _family("generation_tokens", "counter", {own: stats.tokens})
    sources = {
        f'{own},source="local_compute"': stats.prompt_tokens,
        f'{own},source="external_kv_transfer"': stats.pulled_tokens,
    }
    yield from _family("prompt_tokens_by_source", "counter", sources)
    yield from _family("external_prefix_cache_hits", "counter", {own: stats.pulled_tokens})
    # An abort was measured not to count: the figure stays 0 on a real engine too.
    finished = {f'{own},finished_reason="{reason}"': _finished(engine, reason)
                for reason in _FINISH_REASONS}  # fmt: skip
    yield from _family("request_success", "counter", finished)
    rejected = {f'{own},reason="max_num_queued_reqs"': stats.rejections}
    yield from _family("admission_rejections", "counter", rejected)
    yield from _family("cache_config_info", "gauge", {_cache_config(engine): 1.0})
    if not engine.settings.connector:
        return
    yield "# TYPE vllm:nixl_bytes_transferred histogram"
    yield f"vllm:nixl_bytes_transferred_count{{{own}}} {float(link.transfers)}"
    moved = float(link.transferred_tokens * _TOKEN_BYTES)
    yield f"vllm:nixl_bytes_transferred_sum{{{own}}} {moved}"
    yield from _family("nixl_num_failed_transfers", "counter", {own: link.failed_transfers})
    yield from _family("nixl_num_kv_expired_reqs", "counter", {own: core.expired})
    late = {own: core.late_notifications}
    yield from _family("nixl_num_notifications_after_expiry", "counter", late)


def _family(name: str, kind: str, samples: Mapping[str, float]) -> Iterator[str]:
    full = f"vllm:{name}" + ("_total" if kind == "counter" else "")
    yield f"# TYPE {full} {kind}"
    for labels, value in samples.items():
        yield f"{full}{{{labels}}} {float(value)}"


def _finished(engine: EmulatedEngine, reason: str) -> int:
    counts = engine.stats.finished
    return counts[reason] + (counts["tool_calls"] if reason == "stop" else 0)


def _cache_config(engine: EmulatedEngine) -> str:
    pool = engine.core.pool
    labels = {
        "block_size": pool.block_size,
        "cache_dtype": "auto",
        "enable_prefix_caching": True,
        "engine": 0,
        "gpu_memory_utilization": 0.9,
        "num_gpu_blocks": pool.capacity,
    }
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
