"""States to write and read."""

from __future__ import annotations

from hypothesis import strategies as st

from narwhal.fleet import EngineState
from narwhal.model import Role, Route
from narwhal.monitor import EngineRecord, SavedState
from narwhal.telemetry import COUNTED, REJECTION_CODES, Counters, values_of

IIDS = ("d0", "d1", "p0", "p1")
URLS = {iid: f"http://127.0.0.1:{9000 + n}" for n, iid in enumerate(IIDS)}

SAMPLE = SavedState(
    written_at=1_700_000_000.5,
    model="m",
    engines=(
        EngineRecord(
            iid="p0",
            url=URLS["p0"],
            role=Role.PREFILL,
            state=EngineState.SERVING,
            version="0.32.0",
            process_start_s=1_600_000_000.25,
        ),
        EngineRecord(
            iid="d0",
            url=URLS["d0"],
            role=Role.DECODE,
            state=EngineState.DRAINED,
            reason="nothing runs on it any more",
        ),
    ),
    counters=Counters(
        series={
            "requests_received_total": {("chat",): 3.0},
            "requests_total": {("chat", "completed"): 1.0, ("chat", "refused"): 1.0},
            "engine_restarts_total": {("p0",): 2.0},
            "phase_seconds_total": {("decode",): 1.25},
            "retries_total": {(): 7.0},
        },
        rejections={"queue_full": 1},
    ),
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
counts = st.integers(1, 10**12).map(float)
seconds = st.floats(0, 1e9, exclude_min=True)


@st.composite
def counters(draw: st.DrawFn, iids: list[str]) -> Counters:
    series: dict[str, dict[tuple[str, ...], float]] = {}
    for name in draw(st.sets(st.sampled_from(sorted(COUNTED)), max_size=6)):
        labels = [st.sampled_from(values_of(label, iids)) for label in COUNTED[name].labels]
        values = seconds if COUNTED[name].unit == "seconds" else counts
        found = draw(st.dictionaries(st.tuples(*labels), values, max_size=4))
        if found:
            series[name] = {tuple(map(str, key)): value for key, value in found.items()}
    for route in Route:
        ended = sum(n for key, n in series.get("requests_total", {}).items() if key[0] == route)
        if ended:
            received = series.setdefault("requests_received_total", {})
            received[route.value,] = max(ended, received.get((route.value,), 0.0))
    codes = st.sampled_from(REJECTION_CODES)
    return Counters(
        series=series,
        rejections=draw(st.dictionaries(codes, st.integers(1, 1000), max_size=3)),
    )


@st.composite
def states(draw: st.DrawFn) -> SavedState:
    iids = draw(st.lists(st.sampled_from(IIDS), min_size=1, unique=True))
    engines = tuple(
        EngineRecord(
            iid=iid,
            url=URLS[iid],
            role=draw(st.sampled_from(Role)),
            state=draw(st.sampled_from(EngineState)),
            reason=draw(texts),
            version=draw(st.none() | texts),
            process_start_s=draw(st.none() | st.floats(-1e12, 1e12).map(lambda x: x + 0.0)),
        )
        for iid in iids
    )
    return SavedState(
        written_at=draw(st.floats(0, 1e11).map(lambda x: x + 0.0)),
        model=draw(st.sampled_from(["m", "a/b", "ü"])),
        engines=engines,
        counters=draw(counters(iids)),
    )
