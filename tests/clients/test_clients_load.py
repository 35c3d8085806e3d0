"""The load generator of docs/clients.md, run as that page says, against router and engines."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client_stage import Stage, open_stage, until

from processes import PATIENCE_S

AIPERF = Path(sys.executable).with_name("aiperf")
PAGE = Path(__file__).parents[2] / "docs/clients.md"

pytestmark = [
    pytest.mark.clients,
    pytest.mark.sockets,
    pytest.mark.skipif(
        not AIPERF.exists(), reason="aiperf is not installed (pip install -e '.[dev,clients]')"
    ),
]

REQUESTS, TOKENS = 40, 24


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of bytes, made here: nothing is fetched from anywhere."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    bytewise = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    vocabulary = {text: n for n, text in enumerate(sorted(bytewise.alphabet()))}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = bytewise
    made.decoder = tokenizers.decoders.ByteLevel()
    folder = tmp_path_factory.mktemp("tokenizer")
    transformers.PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("fleet")
    paced = ("--base-port", "0", "--decode", "0.002,0,0", "--prefill", "0,1e-5,0.002")
    with open_stage(folder, *paced, engines=4) as stage:
        yield stage


def page_command() -> list[str]:
    """The words of the page's command."""
    _, _, after = PAGE.read_text(encoding="utf-8").partition("```sh\naiperf ")
    block, _, _ = after.partition("```")
    return shlex.split(block.replace("\\\n", " "))


def load(stage: Stage, tokenizer: Path, folder: Path, *more: str, **instead: str) -> Any:
    """Run the page's command on this stage, with words changed and added; what it reports."""
    own = {
        "http://127.0.0.1:8000": stage.url,
        "my-org/my-model": str(tokenizer),
        "my-model": "emulated",
        "400": str(REQUESTS),
        "200": str(TOKENS),
        **instead,
    }
    words = [word for each in page_command() if (word := own.get(each.lstrip("-"), each))]
    command = [str(AIPERF), *words, "--ui", "none", "--output-artifact-dir", str(folder), *more]
    ran = subprocess.run(  # noqa: S603 - the page's own command
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        # Told to be offline, it looks for the tokenizer in a cache and not in its folder.
        env={k: v for k, v in os.environ.items() if not k.endswith("_OFFLINE")},
        cwd=folder,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads((folder / "profile_export_aiperf.json").read_text(encoding="utf-8"))


def completed(stage: Stage) -> int:
    """Requests that the router says it has served."""
    return int(stage.state()["requests"]["terminals"]["completed"])


def check_complete(report: Any) -> None:
    """Every request was served, with every token that it asked for."""
    assert report["error_summary"] == []
    assert report["request_error_rate"]["avg"] == 0
    assert report["request_count"]["avg"] == REQUESTS
    assert report["total_osl"]["avg"] == REQUESTS * TOKENS


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_streams_are_served_and_their_tokens_counted(
    stage: Stage, tokenizer: Path, tmp_path: Path, kind: str
) -> None:
    before = completed(stage)
    report = load(stage, tokenizer, tmp_path, chat=kind)
    check_complete(report)
    assert report["time_to_first_token"]["min"] > 0
    assert "inter_token_latency" in report  # none of it, where one read brought all tokens
    assert completed(stage) == before + REQUESTS
    assert stage.running() == 0
    found = json.loads((tmp_path / "server_metrics_export.json").read_text(encoding="utf-8"))
    with urllib.request.urlopen(f"{stage.url}/metrics") as answer:  # noqa: S310 - loopback
        text = answer.read().decode()
    assert found["summary"]["endpoints_successful"] == [f"{stage.url}/metrics"]
    assert {"narwhal_ttft_seconds", "narwhal_phase_seconds"} <= set(found["metrics"])
    assert [name for name in found["metrics"] if name not in text] == []


def test_whole_answers_after_it_asked_whether_the_router_is_there(
    stage: Stage, tokenizer: Path, tmp_path: Path
) -> None:
    wait = ("--wait-for-model-timeout", "30", "--wait-for-model-mode", "both")
    report = load(stage, tokenizer, tmp_path, *wait, streaming="")
    check_complete(report)
    assert "time_to_first_token" not in report


def test_usage_on_every_chunk(stage: Stage, tokenizer: Path, tmp_path: Path) -> None:
    report = load(stage, tokenizer, tmp_path, "--per-chunk-usage")
    check_complete(report)
    assert report["total_usage_completion_tokens"]["avg"] == REQUESTS * TOKENS


def test_requests_that_it_cancels_leave_nothing_behind(
    stage: Stage, tokenizer: Path, tmp_path: Path
) -> None:
    before = stage.state()["requests"]["terminals"]["cancelled"]
    some = ("--request-cancellation-rate", "40", "--request-cancellation-delay", "0.02")
    report = load(stage, tokenizer, tmp_path, *some)
    kinds = {each["error_details"]["type"] for each in report["error_summary"]}
    assert kinds == {"RequestCancellationError"}
    cancelled = sum(each["count"] for each in report["error_summary"])
    assert report["request_count"]["avg"] + cancelled == REQUESTS
    until(lambda: stage.running() == 0)
    until(lambda: stage.state()["requests"]["in_flight"] == 0)
    assert before < stage.state()["requests"]["terminals"]["cancelled"] <= before + cancelled
