"""One engine's client: prefill, decode, tokenise, release, health and identity.

It speaks HTTP in the engine's dialect and knows nothing of placement, limits or retries: the
caller owns every time limit as a cancel scope around the call. Cancelling any call closes the
connection it was using, synchronously.
"""

from narwhal.engine.client import Correlation, EngineClient, EnginePools, PrefillReply, Served
from narwhal.engine.clients import engine_clients
from narwhal.engine.decode import DecodeLeg
from narwhal.engine.gauges import Gauges, KvCounters, Process
from narwhal.engine.held import RELEASE_S, HeldHandoff
from narwhal.engine.prompts import FEWEST_IDS, Prompts, text_request

__all__ = [
    "FEWEST_IDS",
    "RELEASE_S",
    "Correlation",
    "DecodeLeg",
    "EngineClient",
    "EnginePools",
    "Gauges",
    "HeldHandoff",
    "KvCounters",
    "PrefillReply",
    "Process",
    "Prompts",
    "Served",
    "engine_clients",
    "text_request",
]
