"""What a request takes is free when it ends, without the garbage collector's help."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from stub_fleet import Play, Script, good
from worlds import World, fleet_config, play

ASK = {"model": "m", "prompt": "hello", "max_tokens": 4}


async def refuses(play_: Play) -> None:
    if play_.leg == "decode":
        await play_.status(500, b"{}")
    else:
        await good(play_)


async def cuts(play_: Play) -> None:
    if play_.leg == "decode":
        await play_.hdr()
        await play_.tokens(2)
        await play_.wait(0.1)
        play_.rst()
    await good(play_)


def breaks(what: bytes, tokens: int) -> Script:
    async def script(play_: Play) -> None:
        if play_.leg == "decode":
            await play_.hdr()
            await play_.tokens(tokens)
            if not what:
                await play_.send(b"0\r\n\r\n")
                return
            await play_.chunk(what)
            await play_.hang()
        await good(play_)

    return script


BROKEN = {
    "malformed at first": breaks(b'data: {"x\n\n', 0),
    "malformed later": breaks(b'data: {"x\n\n', 2),
    "error at first": breaks(b'data: {"error": {"message": "no"}}\n\n', 0),
    "error later": breaks(b'data: {"error": {"message": "no"}}\n\n', 2),
    "empty": breaks(b"", 0),
    "no done": breaks(b"", 2),
}


@pytest.mark.parametrize(
    "script",
    [good, refuses, cuts, *BROKEN.values()],
    ids=["good", "refuses", "cuts", *BROKEN],
)
@pytest.mark.parametrize(
    "ask", [ASK, ASK | {"stream": True}, ASK | {"model": "other"}, b"{"], ids=str
)
def test_a_request_and_its_connection_leave_no_cycles(ask: Any, script: Any) -> None:
    """Prompts are large: a router at work holds what it is working on, and not the last minute."""

    async def body(world: World) -> None:
        world.script(script)
        for _ in range(3):
            await world.post(ask)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(3):
                await world.post(ask)
            await world.settle()
            gc.collect()
            left = {type(each) for each in gc.garbage if type(each).__module__[:8] == "narwhal."}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        kinds = {kind.__name__ for kind in left}
        assert not kinds & {"RequestLife", "AsgiReply", "RequestStream", "CompletionRequest"}
        assert not kinds & {"Connection", "Http1"}, "and neither does its connection"
        assert not kinds & {"Attempt", "DecodeRun", "Exchange", "ResponseReader", "RequestRow"}

    play(body, fleet_config(max_attempts=2))
