"""What engines do instead of answering as they should, drawn leg by leg."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narwhal.emulator import faults as f

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection

    Draw = Callable[[random.Random], "list[f.Action]"]

STATUSES = (400, 400, 401, 404, 408, 418, 422, 429, 500, 500, 502, 503, 503, 504, 204, 302)
_DESCRIPTOR = ("remote_engine_id", "remote_block_ids", "remote_request_id", "remote_host")
_PINGS = 60


def _status(rng: random.Random) -> list[f.Action]:
    status = rng.choice(STATUSES)
    error = {"message": f"engine says {status}", "type": "Bad", "param": "x", "code": status}
    body = rng.choice((None, "", "<html>", {"error": error}, {"detail": "no"}))
    retry_after = rng.choice((0, 1, 7)) if rng.random() < 0.3 else None
    return [f.Status(status, "" if status == 204 else body, retry_after)]


def _pause(rng: random.Random) -> f.Action:
    return f.Wait(rng.choice((0.001, 0.05, 0.5, 3.0)))


def _then(*actions: f.Action) -> Draw:
    return lambda _rng: list(actions)


def _some(rng: random.Random) -> f.Action:
    return f.Tokens(rng.choice((0, 1, 2, 7)))


# Anything that can be said or left unsaid before an answer begins.
BEFORE: tuple[Draw, ...] = (
    _status,
    _status,
    _then(f.Hang()),
    _then(f.Rst()),
    _then(f.Fin()),
    lambda rng: [_pause(rng), f.Rst()],
    lambda rng: [_pause(rng), *_status(rng)],
    lambda rng: [_pause(rng)],
)

PREFILL: tuple[Draw, ...] = (
    *BEFORE,
    _then(f.Cut()),
    _then(f.NoKv()),
    _then(f.Malformed()),
    # Half a handoff kills the engine that gets it, so each kind of half should be met often.
    *(_then(f.Kv(name)) for name in _DESCRIPTOR),
    *(_then(f.Kv(name, None)) for name in _DESCRIPTOR),
    lambda rng: [f.Hdr(), _pause(rng), f.Hang()],
    lambda rng: [f.Split(rng.randrange(1, 400), rng.choice((0.0, 0.05, 2.0)))],
    lambda rng: [f.Bytewise(rng.choice((0.0, 0.0005)))],
    _then(f.Huge(30_000)),
    _then(f.Drip(300.0)),
)

STREAM: tuple[Draw, ...] = (
    *BEFORE,
    lambda rng: [_some(rng), f.Cut()],
    lambda rng: [_some(rng), f.Rst()],
    lambda rng: [_some(rng), f.Fin()],
    lambda rng: [_some(rng), f.End()],
    lambda rng: [_some(rng), f.Hang()],
    lambda rng: [_some(rng), _pause(rng)],
    lambda rng: [_some(rng), f.InBandError("broken")],
    lambda rng: [_some(rng), f.Malformed()],
    lambda rng: [_some(rng), f.Huge(100_000)],
    lambda rng: [_some(rng), f.Status(500)],
    lambda rng: [f.Hdr(), _pause(rng)],
    lambda rng: [f.Hdr(), *([f.Send(b": ping\n\n"), f.Wait(0.25)] * rng.randrange(_PINGS))],
    _then(f.Hdr(), f.Hang()),
    _then(f.Hdr(), f.End()),
    _then(f.NoDone()),
    _then(f.NoFinish()),
    _then(f.NoUsage()),
    _then(f.OneWrite()),
    lambda rng: [f.Pace(rng.choice((0.02, 0.4)))],
    lambda rng: [f.Drip(rng.choice((500.0, 20_000.0)))],
    lambda rng: [f.Split(rng.randrange(1, 900), rng.choice((0.0, 0.05)))],
    lambda rng: [f.Late(rng.choice((0.02, 0.5, 30.0)))],
    _then(f.Tail(b"data: more\n\n: and more\n\n")),
)

TOKENIZE: tuple[Draw, ...] = (*BEFORE, _then(f.Cut()), _then(f.Malformed()))

EARLY: tuple[Draw, ...] = (
    lambda rng: [f.Early(), *_status(rng)],
    lambda rng: [f.Unread(rng.choice((0.01, 0.5, 5.0)))],
)

KEEP_ALIVE: tuple[Draw, ...] = (_then(f.OnReuse(), f.Rst()), _then(f.OnReuse(), f.Fin()))
"""The race of keep-alive: the connection is closed as the next request is on its way. Not a
fault: any server may do it."""

_BY_PHASE = {
    f.FaultPhase.PREFILL: PREFILL,
    f.FaultPhase.DECODE: STREAM,
    f.FaultPhase.WHOLE: STREAM,
    f.FaultPhase.TOKENIZE: TOKENIZE,
}
# Prefill comes first in every attempt: with as many faults as decode, few would get to decode.
_SHARES = {f.FaultPhase.PREFILL: 0.5, f.FaultPhase.TOKENIZE: 0.3}
_EARLY_SHARE = 0.05
_KEEP_ALIVE_SHARE = 0.03


class DrawnFaults(f.FaultBook):
    """The faults of one engine: whatever its source of chance says, one leg after another."""

    def __init__(self, rng: random.Random, share: float) -> None:
        super().__init__()
        self.all_legs: f.Fault | None = None
        """While set, what every leg meets, instead of anything drawn."""
        self._rng = rng
        self._share = share

    def take(  # noqa: D102 - as its base
        self, phases: Collection[f.FaultPhase], *, before_body: bool, reused: bool
    ) -> f.Fault | None:
        legs = f.LEGS & set(phases)
        if self.all_legs is not None and legs:
            return None if before_body else self.all_legs
        if before_body:
            return self._draw(EARLY, self._share * _EARLY_SHARE)
        (phase,) = phases
        if phase not in _BY_PHASE:
            return None
        if reused and (fault := self._draw(KEEP_ALIVE, _KEEP_ALIVE_SHARE)) is not None:
            return fault
        return self._draw(_BY_PHASE[phase], self._share * _SHARES.get(phase, 1.0))

    def _draw(self, draws: tuple[Draw, ...], share: float) -> f.Fault | None:
        if self._rng.random() >= share:
            return None
        return f.Fault(self._rng.choice(draws)(self._rng))
