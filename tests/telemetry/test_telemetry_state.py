from __future__ import annotations

from typing import Any

import attrs
import msgspec
import pytest
from telemetry_samples import LIVE, ROW, FixedSource, everything_happens, make_telemetry

from narwhal.admission import Cause
from narwhal.model import Limit, Phase, Terminal, TtftScope
from narwhal.telemetry.facade import RECENT_OUTCOMES
from narwhal.telemetry.state import encode_state, state_document
from narwhal.telemetry.state_types import Targets
from narwhal.telemetry.totals import AdmissionTotals, Totals

from state_schema import check_state

TOTALS = Totals(
    received=5,
    terminals={Terminal.COMPLETED: 3, Terminal.FAILED: 1},
    limits_fired={Limit.CONNECT: 2},
    attempts=6,
    retries=1,
    prompt_tokens=700,
    completion_tokens=80,
    kv_released=4,
    kv_orphaned=2,
    journal_dropped=7,
    admission=AdmissionTotals(
        sized=9,
        unsized=3,
        refusals={Cause.BACKLOG: 2, Cause.PROMPT: 0},
        rejections={"projected_ttft": 2, "queue_full": 3},
        unserved={Phase.PREFILL: 1},
        ttft_scope=TtftScope.FIRST_TOKEN,
        projected=4,
        mean_ratio=1.012345678,
    ),
)


TARGETS = Targets(ttft_s=2.0, ttft_scope=TtftScope.FIRST_TOKEN, tpot_s=0.1)


def document() -> dict[str, Any]:
    built = state_document(
        version="9.9",
        model="tiny",
        slo=TARGETS,
        uptime_s=12.34567,
        live=LIVE,
        totals=TOTALS,
        recent=[ROW],
    )
    decoded = msgspec.json.decode(encode_state(built))
    assert isinstance(decoded, dict)
    return decoded


def test_the_document_says_what_the_values_say() -> None:
    shown = document()
    assert shown["uptime_s"] == 12.346
    assert shown["requests"] == {
        "received": 5,
        "in_flight": 1,
        "waiting": 3,
        "retained": 7,
        "terminals": {"completed": 3, "failed": 1},
    }
    assert shown["admission"] == {
        "offers": {"sized": 9, "unsized": 3},
        "refusals": {"backlog": 2, "prompt": 0},
        "rejections": {"projected_ttft": 2, "queue_full": 3},
        "unserved_placements": {"prefill": 1},
        "ttft_projection": {"scope": "first_token", "requests": 4, "mean_ratio": 1.012346},
    }
    assert shown["pools"] == {"prefill": ["n0"], "decode": ["n0", "n1"]}
    assert shown["limits_fired"] == {"connect": 2}
    assert shown["attempts"] == {"total": 6, "retries": 1, "retry_credits": 9.5}
    assert shown["kv"] == {"released": 4, "orphaned": 2, "orphan_tokens": 1024}
    assert shown["journal"] == {"dropped": 7}
    assert shown["tokens"] == {"prompt": 700, "completion": 80}
    assert shown["slo"] == {"ttft_s": 2.0, "ttft_scope": "first_token", "tpot_s": 0.1}


def test_an_engine_is_shown_with_all_that_is_known_of_it() -> None:
    assert document()["engines"][1] == {
        "iid": "n1",
        "role": "decode",
        "pin": False,
        "state": "held",
        "state_s": 12.5,
        "reason": "3 failures in a row: stream",
        "streaks": {"stream": 2},
        "version": "0.32.0",
        "process_start_s": 1.5e9,
        "drain": None,
        "suspicion": "trusted",
        "seats": {"prefill": 1, "decode": 2},
        "seat_limit": {"prefill": 4},
        "residents": {"prefill": 3, "decode": 4},
        "reserved_tokens": 2048,
        "backlog_s": 1.5,
        "pace": {"prefill": 1.25},
        "orphan_tokens": 512,
        "pools": {
            "serving": {"idle": 5, "busy": 6, "waiting": 8},
            "control": {"idle": 1, "busy": 1, "waiting": 1},
        },
    }


def test_what_the_document_says_is_as_its_schema_says() -> None:
    telemetry = make_telemetry()
    telemetry.attach(FixedSource())
    everything_happens(telemetry)
    found = check_state(telemetry.state(101.0))
    assert found["roles"]["flips"]
    assert found["recent"]
    wrong: dict[str, Any] = {"uptime_s": "1", "roles": {}, "pools": {"decode": "d0"}, "kv": None}
    for key, value in wrong.items():
        with pytest.raises(AssertionError, match=rf"^\$\.{key}"):
            check_state(msgspec.json.encode(found | {key: value}))


def test_recent_outcomes_are_newest_first_and_bounded() -> None:
    telemetry = make_telemetry()
    telemetry.attach(FixedSource())
    for number in range(RECENT_OUTCOMES + 5):
        telemetry.request_ended(attrs.evolve(ROW, request_id=f"r-{number}"))
    recent = msgspec.json.decode(telemetry.state(101.0))["recent"]
    assert len(recent) == RECENT_OUTCOMES
    assert recent[0]["request_id"] == f"r-{RECENT_OUTCOMES + 4}"
    assert recent[0]["attempts"] == 2
    assert recent[0]["request_s"] == 4.0
    assert (recent[0]["prefill"], recent[0]["decode"]) == ("n1", "n0")
    assert (recent[0]["queue_s"], recent[0]["first_token_ttft_s"]) == (0.25, 3.05)
    assert (recent[0]["prefill_ttft_s"], recent[0]["tpot_s"]) == (3.0, 0.02)


def test_what_never_reached_an_engine_is_recent_too() -> None:
    telemetry = make_telemetry()
    telemetry.request_ended(attrs.evolve(ROW, attempts=(), spent={}, tpot_s=None))
    (outcome,) = msgspec.json.decode(telemetry.state(101.0))["recent"]
    assert [outcome[name] for name in ("prefill", "decode", "queue_s", "tpot_s")] == [None] * 4


def test_it_is_written_for_people_too() -> None:
    text = make_telemetry().state(101.0)
    assert text.startswith(b'{\n  "version": "9.9",\n')
    assert b'  "tokens": {\n    "prompt": 0,\n    "completion": 0\n  },\n' in text
    assert text.endswith(b"\n}\n")
