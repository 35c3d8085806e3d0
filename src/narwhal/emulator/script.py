"""Runs a fault's script on an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import trio

from narwhal.emulator import faults as f
from narwhal.emulator.bodies import error_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from narwhal.emulator.reply import Reply

_TYPES = {400: "BadRequestError", 404: "NotFoundError", 503: "Service Unavailable"}


async def run_script(fault: f.Fault | None, reply: Reply, die: Callable[[], None]) -> None:
    """Do what the script says, and then what it left out.

    `die` ends the engine's process. A cancel leaves the answer as it is.
    """
    for action in fault.actions if fault is not None else ():
        await _perform(action, reply, die)
        if reply.link.over:
            return
    await reply.rest()


async def _perform(action: f.Action, reply: Reply, die: Callable[[], None]) -> None:
    match action:
        case f.Wait(seconds):
            await trio.sleep(seconds)
        case f.Hang():
            await trio.sleep_forever()
        case f.Status():
            await _answer(action, reply)
        case f.Hdr():
            await reply.head()
        case f.Header(name, value):
            reply.overrides[name.lower()] = value
        case f.Tokens(count):
            await reply.tokens(count)
        case f.Send(data):
            await reply.send(data)
        case f.Huge(size):
            reply.huge(size)
        case f.Malformed():
            await reply.malformed()
        case _:
            await _end(action, reply, die)


async def _end(action: f.Action, reply: Reply, die: Callable[[], None]) -> None:
    """The actions that end a script. Modifiers act elsewhere and fall through."""
    match action:
        case f.InBandError(message):
            await reply.error(message)
        case f.End():
            await reply.end()
        case f.Fin():
            await reply.close()
        case f.Rst():
            await reply.close(reset=True)
        case f.Cut():
            await reply.cut()
        case f.Die():
            die()
            await reply.close()


async def _answer(action: f.Status, reply: Reply) -> None:
    body, content_type = action.body, "application/json"
    if body is None:
        error_type = _TYPES.get(action.status, "InternalServerError")
        raw = error_body("A fault was asked for.", error_type, None, action.status)
    elif isinstance(body, (bytes, str)):
        raw = body.encode() if isinstance(body, str) else body
        content_type = "text/plain; charset=utf-8"
    else:
        raw = msgspec.json.encode(body)
    if action.retry_after is not None:
        reply.overrides["retry-after"] = f"{action.retry_after:g}"
    await reply.answer(action.status, raw, content_type)
