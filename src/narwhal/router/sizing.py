"""How long a prompt is: counted by an engine, or else estimated from its characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from narwhal.model import EngineError, FailureClass, Limit, LocalError, Phase
from narwhal.router.failures import from_error
from narwhal.wire import vllm

if TYPE_CHECKING:
    from narwhal.engine import EngineClient
    from narwhal.router.life import RequestLife


async def size_prompt(life: RequestLife) -> None:
    """Settle `life.prompt_tokens`.

    Takes `engine.tokenize_timeout_s` at the most; the estimate stands if no engine says in time.
    """
    request, settings = life.request, life.core.config.engine
    if request.prompt_tokens is not None:
        life.counted_by_engine(request.prompt_tokens)
        return
    life.prompt_tokens = max(1, round(request.prompt_chars / settings.chars_per_token))
    if not settings.tokenize:
        return
    life.watch.enter(Phase.TOKENIZE, life.core.now())
    engine = life.core.pick_counter()
    life.core.counting[engine.iid] += 1
    try:
        tokens = await _count(life, engine, settings.tokenize_timeout_s)
    finally:
        life.core.counting[engine.iid] -= 1
    life.record.tokenize_fallback = tokens is None
    life.counted_by_engine(tokens)


async def _count(life: RequestLife, engine: EngineClient, timeout_s: float) -> int | None:
    """The engine's count; None, and the engine blamed, if it gives none in time."""
    core = life.core
    with trio.CancelScope(deadline=core.now() + timeout_s):
        try:
            tokens = await engine.tokenize(vllm.tokenize_body(life.request))
        except (EngineError, LocalError) as error:
            failure = from_error(core.config, error, phase=Phase.TOKENIZE, engine=engine.iid)
            core.blame(engine.iid, Phase.TOKENIZE, failure.failure, failure.retry_after)
            return None
        core.roster.succeeded(engine.iid, Phase.TOKENIZE)
        return tokens
    life.record.fired(Limit.TOKENIZE)
    core.blame(engine.iid, Phase.TOKENIZE, FailureClass.TIMEOUT)
    return None
