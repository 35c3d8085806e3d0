"""A stream's chunks, in the shapes, key order and nulls of vLLM 0.32.0.

A plain token costs one join of prepared bytes; only chunks with something special on them are
encoded field by field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from narwhal.emulator.envelope import VENDOR_CHOICE, VENDOR_TOP
from narwhal.emulator.logprobs import chat_logprobs, completion_logprobs
from narwhal.emulator.tokens import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.emulator.envelope import Choice, Envelope
    from narwhal.emulator.tokens import Piece

DONE = b"data: [DONE]\n\n"


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event: compact JSON, as vLLM writes it."""
    return b"data: %b\n\n" % msgspec.json.encode(data)


class Chunks:
    """Renders a stream. Its calls have to come in the order of the stream."""

    def __init__(self, envelope: Envelope, choices: Sequence[Choice]) -> None:
        self._env = envelope
        self._choices = choices
        request = envelope.request
        self._chat = envelope.chat
        self._suffix = ".chunk" if self._chat else ""
        self._plain = not (
            request.return_token_ids
            or request.continuous_usage
            or request.logprobs is not None
            or envelope.vendor
        )
        frame = msgspec.json.encode({**envelope.head(self._suffix), "choices": []})
        start = b"data: " + frame.removesuffix(b"]}") + b'{"index":'
        field = b',"delta":' if self._chat else b',"text":'
        self._starts = [start + b"%d" % choice.index + field for choice in choices]
        self._tail = (
            b',"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
            if self._chat
            else b',"logprobs":null,"finish_reason":null,"stop_reason":null,'
            b'"prompt_token_ids":null,"token_ids":null}]}\n\n'
        )

    def opening(self) -> bytes:
        """What precedes the first token: the roles of a chat, the echo of a completion."""
        if self._chat:
            return b"".join(map(self._role, self._choices))
        return b"".join(map(self._echo, self._choices)) if self._env.request.echo else b""

    def token(self, choice: Choice) -> bytes:
        """The next token of `choice` as an event."""
        place = choice.shown
        piece = choice.plan[place]
        choice.shown += 1
        if self._plain and not choice.whole and not self._env.huge:
            body = piece.delta if self._chat else piece.encoded
            return self._starts[choice.index] + body + self._tail
        text = piece.text
        if self._env.huge:
            text, self._env.huge = "x" * self._env.huge, 0
        return event(self._chunk(choice, piece, text, first=place == 0))

    def usage(self) -> bytes:
        """The usage event, if the request asked for one."""
        if not (self._env.request.include_usage and self._env.usage):
            return b""
        return event(
            {
                **self._env.head(self._suffix),
                "choices": [],
                "usage": self._env.counts(self._choices),
                "system_fingerprint": self._env.fingerprint,
            }
        )

    def malformed(self) -> bytes:
        """An event whose data stops in the middle of an object."""
        return self._starts[0] + b'" half\n\n'

    def _role(self, choice: Choice) -> bytes:
        chunk = {
            **self._env.head(self._suffix),
            "choices": [
                {
                    "index": choice.index,
                    "delta": {"role": "assistant", "content": ""},
                    "logprobs": None,
                    "finish_reason": None,
                }
            ],
        }
        request = self._env.request
        if request.continuous_usage:
            chunk["usage"] = self._running_usage()
        chunk["prompt_token_ids"] = choice.prompt.ids if request.return_token_ids else None
        chunk["prompt_text"] = None
        return event(chunk)

    def _echo(self, choice: Choice) -> bytes:
        """The prompt, with its ids whether they were asked for or not."""
        body = {
            "index": choice.index,
            "text": choice.echo,
            "logprobs": None,
            "finish_reason": None,
            "stop_reason": None,
            "prompt_token_ids": choice.prompt.ids,
            "token_ids": None,
        }
        return event({**self._env.head(), "choices": [body]})

    def _running_usage(self) -> dict[str, Any]:
        """The counts so far, as every chunk may have them."""
        details = {"completion_tokens_details": None} if self._chat else {}
        return {**self._env.counts(self._choices), **details}

    def _chunk(self, choice: Choice, piece: Piece, text: str, *, first: bool) -> dict[str, Any]:
        request = self._env.request
        body: dict[str, Any] = {"index": choice.index}
        finish = self._env.finish_of(choice)
        token_ids = [piece.token] if request.return_token_ids else None
        if self._chat:
            body["delta"] = self._delta(piece, text)
            body["logprobs"] = self._logprobs(choice, piece)
            body["finish_reason"] = finish
            if finish is not None:
                body["stop_reason"] = choice.plan.stop_reason
        else:
            body["text"] = text
            body["logprobs"] = self._logprobs(choice, piece)
            body["finish_reason"] = finish
            body["stop_reason"] = choice.plan.stop_reason if finish is not None else None
            with_prompt = first and request.return_token_ids and not request.echo
            body["prompt_token_ids"] = choice.prompt.ids if with_prompt else None
        body["token_ids"] = token_ids
        if self._env.vendor:
            body |= VENDOR_CHOICE
        chunk = {**self._env.head(self._suffix), "choices": [body]}
        if request.continuous_usage:
            chunk["usage"] = self._running_usage()
        if self._env.vendor:
            chunk |= VENDOR_TOP
        if all(other.whole for other in self._choices) and not request.include_usage:
            chunk["system_fingerprint"] = self._env.fingerprint
        return chunk

    def _delta(self, piece: Piece, text: str) -> dict[str, Any]:
        if piece.kind is Kind.TOOL:
            delta: dict[str, Any] = msgspec.json.decode(piece.delta)
        else:
            delta = {piece.kind.value: text}
        if self._env.vendor:
            delta["vendor_text"] = text
        return delta

    def _logprobs(self, choice: Choice, piece: Piece) -> dict[str, Any] | None:
        count = self._env.request.logprobs
        if count is None:
            return None
        if self._chat:
            return chat_logprobs([piece], count)
        offset = choice.offset or len(choice.echo if self._env.request.echo else "")
        choice.offset = offset + len(piece.text)
        return completion_logprobs([piece], count, offset)
