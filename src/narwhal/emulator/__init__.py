"""Emulated vLLM engines: the dialect, a model of time, KV handoffs, and faults on demand.

For demonstrations, tests and simulation. The scheduler is pure (`EngineCore`); an
`EmulatedFleet` puts several on Trio's clock and serves them over HTTP, on sockets or in memory.
What the engines say and how they fail is what was measured on vLLM 0.32.0 with NIXL.
"""

from narwhal.emulator.app import EngineApp
from narwhal.emulator.core import (
    Effect,
    EngineCore,
    Leg,
    PrefillFinished,
    Sequence,
    SequenceFinished,
    State,
    TokensProduced,
)
from narwhal.emulator.engine import EmulatedEngine, Outage
from narwhal.emulator.fault_text import parse_fault
from narwhal.emulator.faults import Fault, FaultPhase
from narwhal.emulator.fleet import EmulatedFleet, Listen, serve_engine
from narwhal.emulator.handoff import Fleet, Pull, Verdict
from narwhal.emulator.settings import EngineSettings, TimeModel
from narwhal.emulator.stats import Outcome, Record, Seen, Stats
from narwhal.emulator.tokens import detokenize, text_of, tokenize

__all__ = [
    "Effect",
    "EmulatedEngine",
    "EmulatedFleet",
    "EngineApp",
    "EngineCore",
    "EngineSettings",
    "Fault",
    "FaultPhase",
    "Fleet",
    "Leg",
    "Listen",
    "Outage",
    "Outcome",
    "PrefillFinished",
    "Pull",
    "Record",
    "Seen",
    "Sequence",
    "SequenceFinished",
    "State",
    "Stats",
    "TimeModel",
    "TokensProduced",
    "Verdict",
    "detokenize",
    "parse_fault",
    "serve_engine",
    "text_of",
    "tokenize",
]
