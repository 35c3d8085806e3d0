"""What an answer will say: fixed by the prompt and the request before the first token.

At temperature 0 a fleet of identical engines gives one prompt one answer, wherever its legs
run; that is what lets a test compare a router's output with a single engine's. An engine that
read foreign KV blocks gives another answer instead, different in every word.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Protocol

import attrs
import msgspec

from narwhal.emulator.tokens import END, OUTPUT, WIDE, WORDS, Kind, Piece, mix, piece, tokenize

if TYPE_CHECKING:
    from collections.abc import Iterator

DIRECTIVE = "out="
_SAMPLE = 0xD1B54A32D192ED03
_ARGUMENT_WORDS = 3


@attrs.frozen(kw_only=True)
class Style:
    """Unusual parts of an answer, asked for by a prompt word `out=...` or a header.

    The word is a comma-separated list: `unicode`, `reasoning:5`, `refusal`, `tools:2`,
    `whole`, `vendor`, `length:40`.
    """

    unicode: bool = False
    """Characters of several bytes, each in two tokens, the first with an empty text."""
    reasoning: int = 0
    """Tokens of reasoning before the content (chat)."""
    refusal: bool = False
    """A refusal in the place of the content (chat)."""
    tools: int = 0
    """Tool calls, in parallel, in the place of the content (chat)."""
    whole: bool = False
    """Each tool call in one chunk."""
    vendor: bool = False
    """Fields that no OpenAI client knows: in the answer, the choice and the message."""
    length: int | None = None
    """Tokens of the answer before it ends by itself; None: as many as are allowed."""

    @classmethod
    def parse(cls, text: str) -> Style | None:
        """Read `unicode,length:40`; None if it is no such list."""
        chosen: dict[str, bool | int] = {}
        for item in text.split(","):
            name, _, value = item.partition(":")
            if name in ("unicode", "refusal", "whole", "vendor") and not value:
                chosen[name] = True
            elif name in ("reasoning", "tools", "length") and (value or "1").isdigit():
                chosen[name] = max(1, int(value or 1))
            else:
                return None
        return cls(**chosen)  # type: ignore[arg-type]  # names and kinds were checked above


@attrs.frozen(kw_only=True)
class Wish:
    """What a request asks of its answer."""

    limit: int
    """Most tokens, at least 1."""
    natural: int | None = None
    """Tokens after which the model ends by itself, the end-of-text token included."""
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    style: Style = attrs.field(factory=Style)
    tools: tuple[str, ...] = ()
    """Names of the functions to call, one call each; empty for text."""
    named: bool = False
    """The request named the function, and such a call ends as text does."""


class Plan(Protocol):
    """One answer, token by token."""

    @property
    def length(self) -> int:
        """Its tokens, at least 1."""

    @property
    def finish_reason(self) -> str:
        """`stop`, `length` or `tool_calls`."""

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or stop token that ended it."""

    def __getitem__(self, index: int) -> Piece:
        """Token `index`; must be below `length`."""


def make_plan(wish: Wish, digest: int, *, sample: int = 0, garbled: bool = False) -> Plan:
    """The answer to the prompt `digest`; `garbled` for one computed on foreign KV blocks."""
    source = _Source(digest + sample * _SAMPLE, WORDS // 2 if garbled else 0)
    style = wish.style
    natural = None if wish.natural is None else max(wish.natural, wish.min_tokens)
    special = style.unicode or style.reasoning or style.refusal or wish.tools
    if special or wish.stop or wish.stop_token_ids:
        return _listed(wish, source, natural)
    if natural is not None and natural <= wish.limit:
        return _PlainPlan(natural, "stop", source)
    return _PlainPlan(wish.limit, "length", source)


@attrs.frozen
class _Source:
    """The words of one answer, by place."""

    seed: int
    shift: int

    def __getitem__(self, place: int) -> Piece:
        return OUTPUT[(mix(self.seed, place) + self.shift) % WORDS]

    def wide(self, place: int) -> tuple[Piece, ...]:
        """A character of several bytes, and a plain word every fourth time."""
        number = mix(self.seed, place) + self.shift
        if number % 4 == 0:
            return (self[place],)
        return WIDE[number % len(WIDE)]


@attrs.frozen
class _PlainPlan:
    """Words worked out as they are asked for: the usual answer, of any length, for nothing."""

    length: int
    finish_reason: str
    _source: _Source
    stop_reason: None = None

    def __getitem__(self, index: int) -> Piece:
        if index == self.length - 1 and self.finish_reason == "stop":
            return END
        return self._source[index]


@attrs.frozen
class _ListedPlan:
    """An answer whose course depends on its text, worked out at once."""

    pieces: tuple[Piece, ...]
    finish_reason: str
    stop_reason: str | int | None = None

    @property
    def length(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> Piece:
        return self.pieces[index]


def _listed(wish: Wish, source: _Source, natural: int | None) -> _ListedPlan:
    pieces = list(islice(_course(wish, source, natural), wish.limit))
    if wish.stop or wish.stop_token_ids:
        scan = _StopScan(wish)
        pieces = scan.run(pieces)
        if scan.stop_reason is not None:
            return _ListedPlan(tuple(pieces), "stop", scan.stop_reason)
    if pieces[-1].token != END.token:
        return _ListedPlan(tuple(pieces), "length")
    called = wish.tools and not wish.named
    return _ListedPlan(tuple(pieces), "tool_calls" if called else "stop")


def _course(wish: Wish, source: _Source, natural: int | None) -> Iterator[Piece]:
    """All tokens of the answer up to its natural end; without one, for ever."""
    style = wish.style
    for place in range(style.reasoning):
        word = source[place]
        yield piece(word.token, word.text, Kind.REASONING)
    if wish.tools:
        for call, name in enumerate(wish.tools):
            yield from _tool_call(call, name, source, whole=style.whole)
        yield END
        return
    words = None if natural is None else max(0, natural - style.reasoning - 1)
    for word in islice(_text(style, source), words):
        yield piece(word.token, word.text, Kind.REFUSAL) if style.refusal else word
    yield END


def _text(style: Style, source: _Source) -> Iterator[Piece]:
    place = style.reasoning
    while True:
        if style.unicode:
            yield from source.wide(place)
        else:
            yield source[place]
        place += 1


def _tool_call(call: int, name: str, source: _Source, *, whole: bool) -> Iterator[Piece]:
    """A call of `name`: its head, then its arguments a few characters at a time."""
    base = (call + 1) * 1_000_003  # apart from the places of the text
    words = "".join(source[base + place].text for place in range(_ARGUMENT_WORDS))
    arguments = f'{{"query":"{words.strip()}"}}'
    call_id = f"chatcmpl-tool-{mix(source.seed, base):08x}{mix(source.seed, base + 1):08x}"
    function = {"name": name, "arguments": arguments} if whole else {"name": name}
    opens = {"id": call_id, "type": "function", "index": call, "function": function}
    first = arguments if whole else ""
    yield _tool_piece(tokenize(name)[0] if name else END.token, first, call, opens)
    if not whole:
        for start in range(0, len(arguments), 4):
            text = arguments[start : start + 4]
            body = {"index": call, "function": {"arguments": text}}
            yield _tool_piece(tokenize(text)[0], text, call, body, opens=False)


def _tool_piece(
    token: int, text: str, call: int, body: dict[str, object], *, opens: bool = True
) -> Piece:
    delta = msgspec.json.encode({"content": None, "tool_calls": [body]})
    return Piece(token, text, b'""', delta, Kind.TOOL, call, body if opens else None)


class _StopScan:
    """Ends an answer at a stop string or token, and holds text back as a real engine does.

    Until the answer ends, the last characters that might begin a stop string are not shown;
    so a token's text may be empty and a later one's longer.
    """

    def __init__(self, wish: Wish) -> None:
        self.stop_reason: str | int | None = None
        self._wish = wish
        longest = max((len(stop) for stop in wish.stop), default=1)
        self._held = 0 if wish.include_stop else longest - 1
        self._text = ""
        self._shown = 0

    def run(self, pieces: list[Piece]) -> list[Piece]:
        """The pieces as they would be shown, up to the stop; sets `stop_reason` if there is one."""
        out: list[Piece] = []
        last = len(pieces) - 1
        for place, word in enumerate(pieces):
            if word.kind is not Kind.CONTENT:
                out.append(word)
                continue
            upto = self._see(word, may_stop=place >= self._wish.min_tokens)
            if upto is None:
                upto = len(self._text) - (0 if place == last else self._held)
            out.append(self._show(word.token, max(upto, self._shown)))
            if self.stop_reason is not None:
                break
        return out

    def _see(self, word: Piece, *, may_stop: bool) -> int | None:
        """Take a token in; where to cut the text if it stops the answer."""
        wish = self._wish
        if may_stop and word.token in wish.stop_token_ids:
            self.stop_reason = word.token
            return len(self._text)
        before = len(self._text)
        self._text += word.text
        hits = []
        for stop in wish.stop if may_stop else ():
            at = self._text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0:
                hits.append((at, stop))
        if not hits:
            return None
        at, self.stop_reason = min(hits)
        return at + len(self.stop_reason) if wish.include_stop else at

    def _show(self, token: int, upto: int) -> Piece:
        shown = piece(token, self._text[self._shown : upto])
        self._shown = upto
        return shown
