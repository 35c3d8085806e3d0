"""The page on errors against the code that makes them: status, type, retries, advice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import attrs
import pytest
from docs_pages import DOCS, code_blocks, table

from narwhal.admission import Cause, Refused
from narwhal.app.openapi import errors
from narwhal.app.openapi.access import ACCESS_CODES
from narwhal.app.openapi.operations import PAGE_CODES
from narwhal.model import (
    BodyTooLarge,
    ConnectFailed,
    EngineClosed,
    EngineError,
    EngineProtocolError,
    EngineStatus,
    Failure,
    HandoffRejected,
    InvalidRequest,
    Limit,
    LocalError,
    NoEngine,
    Outcome,
    Phase,
    PoolExhausted,
    ResponseTooLarge,
    StreamFailed,
    UnknownModel,
)
from narwhal.router import failures, outcomes
from narwhal.telemetry.codes import ERROR_CODES

from stub_fleet import Play, good
from worlds import World, fleet_config, play

PAGE = (DOCS / "errors.md").read_text(encoding="utf-8")
CONFIG = fleet_config()


@attrs.frozen
class Row:
    """What the page says of a code."""

    status: str
    type: str
    again: str
    client: str


ROWS = {
    code.strip("`"): Row(status, kind.strip("`"), again, client)
    for code, status, kind, _, again, client in table(PAGE, "## Codes")
}
MEANINGS = {row[0].strip("`"): row[3] for row in table(PAGE, "## Codes")}


def ends() -> Iterator[Outcome]:
    """Ends that are no failure of a leg."""
    for error in (InvalidRequest("x"), UnknownModel("x"), BodyTooLarge("x")):
        yield outcomes.client_error(error)
    yield outcomes.retention_full(CONFIG, 3)
    yield outcomes.queue_full(CONFIG, 3)
    for cause in Cause:
        again = None if cause in (Cause.PROMPT, Cause.LENGTH) else 3
        refusal = Refused(cause=cause, projected_s=3.0, retry_after=again)
        yield outcomes.refused(CONFIG, refusal, 1000)
    yield outcomes.draining()
    yield outcomes.degraded()
    yield outcomes.request_expired(CONFIG, committed=False)
    yield outcomes.queue_expired(CONFIG)
    yield outcomes.shut_down(CONFIG)
    yield outcomes.internal_error()


def legs() -> Iterator[Failure]:
    """Failures of legs."""
    for limit in (Limit.PREFILL, Limit.FIRST_TOKEN, Limit.READ_GAP):
        yield failures.from_limit(CONFIG, limit, phase=Phase.DECODE, engine="d0")
    yield failures.handoff_expired(CONFIG, by_cap=True)
    yield failures.handoff_expired(CONFIG, by_cap=False)
    errors: list[EngineError | LocalError] = [
        ConnectFailed("x"),
        EngineClosed("x", request_bytes=1, response_bytes=0),
        EngineProtocolError("x"),
        EngineError("x"),
        HandoffRejected("x", missing=True),
        HandoffRejected("x", missing=False),
        *(EngineStatus(status, b"{}", retry_after=None) for status in (408, 429, 503)),
        StreamFailed("x"),
        *(StreamFailed("x", code=f"stream_{how}") for how in ("cut", "empty", "malformed")),
        StreamFailed("x", code="stream_error", body=b'{"error":{"message":"x","code":500}}'),
        PoolExhausted("x"),
        ResponseTooLarge("x"),
        LocalError("x"),
    ]
    for error in errors:
        yield failures.from_error(CONFIG, error, phase=Phase.DECODE, engine="d0")


def told(failure: Failure) -> Outcome:
    return outcomes.failed(failure, attempt=1, max_attempts=1)


def check(outcome: Outcome, row: Row) -> None:
    assert row.status == str(outcome.status)
    assert row.type == outcome.error_type
    assert row.client.startswith("after `retry-after`") is (outcome.retry_after is not None)


def test_the_table_says_what_clients_are_told() -> None:
    seen = set()
    for outcome in ends():
        check(outcome, ROWS[str(outcome.code)])
        assert ROWS[str(outcome.code)].again == "", "there is no leg to repeat"
        seen.add(outcome.code)
    check(outcomes.malformed_event(), ROWS["stream_malformed"])
    for failure in legs():
        check(told(failure), ROWS[failure.code])
        assert ROWS[failure.code].again == ("yes" if failure.transient else "no"), failure.code
        seen.add(failure.code)
    elsewhere = {"expired", "engine_rejected", "engine_status", "client_closed", "cancelled"}
    assert seen | elsewhere == set(ERROR_CODES)


def test_the_rows_with_a_case_of_their_own() -> None:
    expired = outcomes.request_expired(CONFIG, committed=True)
    assert (expired.code, ROWS["expired"].status) == ("expired", "in a stream")
    late = ConnectFailed("x", limit=Limit.CONNECT)
    outcome = told(failures.from_error(CONFIG, late, phase=Phase.PREFILL, engine="p0"))
    assert (outcome.code, outcome.status, outcome.error_type) == (
        "engine_unreachable",
        504,
        "timeout",
    )
    gone = failures.from_error(CONFIG, NoEngine("x"), phase=Phase.DECODE, engine="d0")
    check(told(gone), ROWS["no_engine"])
    assert not gone.transient
    for ended in (outcomes.client_closed(), outcomes.caller_cancelled()):
        assert ROWS[str(ended.code)].status == f"{ended.status}, in the journal only"


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 405, 407, 422, *range(500, 506)])
@pytest.mark.parametrize("body", [b"", b'{"error":{"message":"m","code":"c"}}'])
def test_which_statuses_of_engines_are_whose(status: int, body: bytes) -> None:
    if status == 503:
        return  # busy: in the table
    error = EngineStatus(status, body, retry_after=None)
    failure = failures.from_error(CONFIG, error, phase=Phase.DECODE, engine="d0")
    named = {int(word) for word in re.findall(r"\b[45]\d\d\b", ROWS["engine_status"].again)}
    assert failure.transient is (status in named)
    (row,) = (line for line in PAGE.splitlines() if line.startswith("| `engine_status`"))
    ours = {int(word) for word in re.findall(r"\b4\d\d\b", row)}
    clients = bool(body) and 400 <= status < 500 and status not in ours
    assert told(failure).code == ("engine_rejected" if clients else "engine_status")
    if clients:
        assert told(failure).status == status
    else:
        check(told(failure), ROWS["engine_status"])


def test_routes_that_are_not_there() -> None:
    async def body(world: World) -> None:
        for path, method in (("/nope", "GET"), ("/v1/completions", "GET")):
            answer = await world.get(path, method)
            row = ROWS[answer.error["code"]]
            assert (row.status, row.type) == (str(answer.status), answer.error["type"])
            assert "narwhal" not in answer.error

    play(body)


def test_the_example_is_a_real_one() -> None:
    example = json.loads(code_blocks(PAGE)[0])["error"]

    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            if play_.leg == "decode":
                await play_.hang()
            await play_.wait({"tokenize": 0.011, "prefill": 1.05}.get(play_.leg, 0.0))
            await good(play_)

        world.script(script)
        ask = {"model": "m", "prompt": "hello", "max_tokens": 4}
        error = (await world.post(ask)).error
        account, shown = error.pop("narwhal"), example.pop("narwhal")
        assert error == example
        assert account.keys() == shown.keys()
        assert account["spent_s"].keys() == shown["spent_s"].keys()
        del account["request_id"], shown["request_id"]
        del account["spent_s"]["backoff"], shown["spent_s"]["backoff"]  # drawn by lot
        assert account == shown

    play(body, fleet_config(prefill=2, decode=2, max_attempts=2))


def test_the_openapi_document_has_the_page_s_statuses() -> None:
    page = {code: row.status for code, row in ROWS.items() if code in errors.STATUSES}
    assert page == {code: str(status) for code, status in errors.STATUSES.items()}
    late = [code for code in ROWS if code in errors.TIMES_OUT]
    assert all("it is 504" in MEANINGS[code] for code in late)
    assert [ROWS[code].status for code in errors.IN_STREAMS] == ["in a stream"]
    assert all("journal only" in ROWS[code].status for code in errors.UNSENT)
    others = set(ROWS) - set(ERROR_CODES)
    assert {*PAGE_CODES, *ACCESS_CODES} == others
