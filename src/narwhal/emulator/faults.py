"""Faults as data: what an emulated engine does instead of answering as it should.

A fault is a script of actions, which runs when a request of its phase arrives. What the script
leaves out happens as usual: after `wait(2)` comes the whole answer, after `tokens(3);rst`
nothing. The actions, in the text form that headers and prompt words use:

=====================  =========================================================================
`wait(s)`              pause s seconds
`hang`                 do nothing more, until the client goes away
`status(n,body,s)`     answer status n; body: text or JSON, default an error object; s: Retry-After
`hdr`                  send status 200 and the headers now
`header(name,value)`   set a header of the answer, for instance a wrong content-type
`tokens(k)`            send the next k tokens at the engine's pace; 0: what precedes the first
`send(bytes)`          write these bytes, in one write
`huge(n)`              make the next token's text n bytes long
`malformed`            send an event that is not JSON
`error(message)`       send an in-band error event and `[DONE]`; 500 if nothing is streamed
`end`                  end the HTTP message here, in order, without `[DONE]`
`fin`                  close the connection between two events, without ending the message
`cut`                  close it in the middle of an event
`rst`                  reset it
`die`                  end the engine process
`nodone`, `nofinish`   leave out `[DONE]`, or the finish reason
`tail(bytes)`          send these bytes after `[DONE]`
`late(s)`              end the HTTP message of a stream s seconds after its last byte
`nousage`              leave out the usage
`nokv`                 answer a prefill without `kv_transfer_params`, and keep no KV cache
`kv(name)`             leave one field out of `kv_transfer_params`
`kv(name,value)`       put another value (JSON) into it
`nopull`               as decoder: leave the producer's KV cache alone
`pace(s)`              pause s seconds before every token
`drip(n)`              write at most n bytes a second
`bytewise(s)`          write one byte at a time, s seconds (0.001) apart
`split(k,s)`           write the body in two writes, split at byte k
`onewrite`             write the whole body at once
`early`                act before the request's body is read; for a script with `status`, mostly
`unread(s)`            do not read the request's body for s seconds
`onreuse`              act only on a connection that has served a request before
`stall(k)`             `tokens(k);hang`
`drop(k)`              `tokens(k);rst`
=====================  =========================================================================

The text form is `phase:action;action*count`: `decode:tokens(3);rst*2` resets the next two decode
streams after three tokens. Without a phase a fault is for any leg; without a count, for good.
Arguments are JSON values or bare words; one with a `,` or `)` in it has to be JSON.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from narwhal.emulator.core import Leg


class FaultPhase(StrEnum):
    """Which requests a fault is for."""

    PREFILL = "prefill"
    DECODE = "decode"
    WHOLE = "whole"
    ANY = "any"
    """Any of the three legs."""
    TOKENIZE = "tokenize"
    HEALTH = "health"
    VERSION = "version"
    METRICS = "metrics"
    MODELS = "models"

    @classmethod
    def of(cls, leg: Leg) -> FaultPhase:
        """The phase of a completion request."""
        return cls(leg.value)


LEGS = frozenset((FaultPhase.PREFILL, FaultPhase.DECODE, FaultPhase.WHOLE))


class Missing(Enum):
    """The type of `LEFT_OUT`."""

    LEFT_OUT = 0


LEFT_OUT = Missing.LEFT_OUT
"""The value of a field that is not there, unlike one that is null."""


class Action:
    """One step of a script; a leaf of this tree is frozen data."""

    __slots__ = ()


@attrs.frozen
class Wait(Action):
    """Pause."""

    seconds: float


@attrs.frozen
class Hang(Action):
    """Do nothing more; the connection stays open."""


@attrs.frozen
class Status(Action):
    """Answer with a status and be done. Ends the script."""

    status: int
    body: object = None
    """Text, or a value to send as JSON; None: an error object in the dialect's shape."""
    retry_after: float | None = None


@attrs.frozen
class Hdr(Action):
    """Send status 200 and the headers now."""


@attrs.frozen
class Header(Action):
    """Set a header of the answer."""

    name: str = attrs.field(converter=str)
    value: str = attrs.field(converter=str)


@attrs.frozen
class Tokens(Action):
    """Send the next `count` tokens as usual; with 0, what comes before the first."""

    count: int


def _to_bytes(data: bytes | str) -> bytes:
    return data.encode() if isinstance(data, str) else data


@attrs.frozen
class Send(Action):
    """One write of exactly these bytes."""

    data: bytes = attrs.field(converter=_to_bytes)


@attrs.frozen
class Huge(Action):
    """The next token's text gets `size` bytes."""

    size: int


@attrs.frozen
class Malformed(Action):
    """An event whose data is half an object."""


@attrs.frozen
class InBandError(Action):
    """An error event in the stream, then `[DONE]`. Ends the script."""

    message: str = "Internal server error"


@attrs.frozen
class End(Action):
    """End the HTTP message in order, here. Ends the script."""


@attrs.frozen
class Fin(Action):
    """Close the connection between two writes. Ends the script."""


@attrs.frozen
class Rst(Action):
    """Reset the connection. Ends the script."""


@attrs.frozen
class Cut(Action):
    """Close the connection in the middle of the next event or body. Ends the script."""


@attrs.frozen
class Die(Action):
    """The engine process ends. Ends the script."""


@attrs.frozen
class NoDone(Action):
    """The stream ends without `[DONE]`."""


@attrs.frozen
class Tail(Action):
    """More bytes after the stream's `[DONE]`."""

    data: bytes = attrs.field(converter=_to_bytes)


@attrs.frozen
class Late(Action):
    """The stream's HTTP message ends some time after its last byte."""

    seconds: float


@attrs.frozen
class NoFinish(Action):
    """The last token has no finish reason."""


@attrs.frozen
class NoUsage(Action):
    """The answer has no usage."""


@attrs.frozen
class NoKv(Action):
    """A prefill answers without `kv_transfer_params`, and keeps nothing for a decoder."""


@attrs.frozen
class Kv(Action):
    """One field of `kv_transfer_params` missing, or with another value."""

    name: str
    value: object = LEFT_OUT


@attrs.frozen
class NoPull(Action):
    """The decoder does not fetch what the request names, nor tell the producer."""


@attrs.frozen
class Pace(Action):
    """Pause before every token."""

    seconds: float


@attrs.frozen
class Drip(Action):
    """Write slowly."""

    bytes_per_second: float


@attrs.frozen
class Bytewise(Action):
    """One byte per write."""

    gap: float = 0.001


@attrs.frozen
class Split(Action):
    """The body in two writes."""

    at: int
    gap: float = 0.001


@attrs.frozen
class OneWrite(Action):
    """The body in one write."""


@attrs.frozen
class Early(Action):
    """The script runs before the request's body is read."""


@attrs.frozen
class Unread(Action):
    """The body stays unread for a while, so that a client that still writes has to wait."""

    seconds: float


@attrs.frozen
class OnReuse(Action):
    """The fault is only for connections that have served a request before."""


ENDS = (Status, InBandError, End, Fin, Rst, Cut, Die, Hang)
"""Actions after which nothing of a script can happen."""


def _script(actions: Iterable[Action]) -> tuple[Action, ...]:
    script = tuple(actions)
    too_soon = [action for action in script[:-1] if isinstance(action, ENDS)]
    if too_soon:
        raise ValueError(f"{too_soon[0]!r} ends a script, so it has to be the last action")
    early = any(isinstance(action, Early) for action in script)
    if early and not isinstance(script[-1], ENDS):
        raise ValueError("a script with Early() has to end the answer: a body follows no more")
    return script


@attrs.frozen
class Fault:
    """A script for requests of one phase.

    `Fault([Tokens(3), Rst()], phase=FaultPhase.DECODE, count=2)`, or the same as text:
    `parse_fault("decode:tokens(3);rst*2")`.
    """

    actions: tuple[Action, ...] = attrs.field(converter=_script)
    phase: FaultPhase = attrs.field(default=FaultPhase.ANY, converter=FaultPhase)
    count: int | None = attrs.field(default=None, kw_only=True)
    """How many requests it acts on; None: all."""

    def has(self, kind: type[Action]) -> bool:
        """Whether an action of this kind is in the script."""
        return any(isinstance(action, kind) for action in self.actions)

    def find(self, kind: type[Any]) -> Any:
        """The first action of this kind, or None."""
        return next((action for action in self.actions if isinstance(action, kind)), None)

    def is_for(self, phases: Collection[FaultPhase]) -> bool:
        """Whether it acts on a request that is of one of these phases."""
        if self.phase is FaultPhase.ANY:
            return not LEGS.isdisjoint(phases)
        return self.phase in phases

    @property
    def before_body(self) -> bool:
        """Whether it has to be chosen before the request's body is read."""
        return self.has(Early) or self.has(Unread)

    @property
    def on_reuse(self) -> bool:
        """Whether it acts only on connections that have served a request before."""
        return self.has(OnReuse)

    @property
    def unread_s(self) -> float:
        """Seconds for which the request's body stays unread."""
        unread: Unread | None = self.find(Unread)
        return 0.0 if unread is None else unread.seconds


class FaultBook:
    """The faults set on one engine. The first that fits a request acts on it, alone."""

    def __init__(self) -> None:
        self._faults: list[tuple[Fault, int | None]] = []

    def set(self, faults: Iterable[Fault]) -> None:
        """Replace all faults."""
        self._faults = [(fault, fault.count) for fault in faults]

    @property
    def pending(self) -> list[Fault]:
        """Faults that can still act."""
        return [fault for fault, _ in self._faults]

    def take(
        self, phases: Collection[FaultPhase], *, before_body: bool, reused: bool
    ) -> Fault | None:
        """The fault for a request, counted as used.

        Asked twice: before the request's body is read, when a completion may still be any of
        the three legs, and after.
        """
        for place, (fault, left) in enumerate(self._faults):
            if fault.before_body is not before_body or not fault.is_for(phases):
                continue
            if fault.on_reuse and not reused:
                continue
            if left == 1:
                del self._faults[place]
            elif left is not None:
                self._faults[place] = (fault, left - 1)
            return fault
        return None
