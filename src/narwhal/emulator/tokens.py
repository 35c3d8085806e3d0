"""A tokenizer without a vocabulary file, and the words that emulated answers are made of.

A token is up to four characters of a word with the space before it, or one white-space
character: about the four characters a token that real tokenizers come to in English. Ids are
hashes, so that every process gives a text the same ids; they are below `VOCABULARY` as a real
engine's are.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from array import array
from enum import Enum
from itertools import product
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

VOCABULARY = 131_072
BOS = 1
EOS = 2
TURN = 3
ROLE = 4
CONTENT = 5
HALVES = 16
"""First of the ids for tokens that only begin a character."""
FIRST_PIECE = 1024
WORDS = 512
_MASK = (1 << 64) - 1
_PIECE = re.compile(r" ?\S{1,4}|\s")
# Pieces remembered so that they need no hashing again, and for turning ids back into text.
_MAX_PIECES = 4 * VOCABULARY


class _Pieces(dict[str, int]):
    """The ids of pieces of text, worked out when first asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[int, str] = {}

    def __missing__(self, piece: str) -> int:
        if len(self) >= _MAX_PIECES:
            self.clear()
        raw = piece.encode("utf-8", "surrogatepass")
        token = FIRST_PIECE + zlib.crc32(raw) % (VOCABULARY - FIRST_PIECE)
        self[piece] = token
        self.texts[token] = piece
        return token


_PIECES = _Pieces()


def tokenize(text: str) -> list[int]:
    """The ids of `text`, without special tokens; the same text always gives the same ids."""
    return [_PIECES[piece] for piece in _PIECE.findall(text)]


def detokenize(ids: Sequence[int]) -> str:
    """The text of `ids`: exact for ids that `tokenize` gave in this process, else `<id>`."""
    return "".join(_PIECES.texts.get(token, f"<{token}>") for token in ids)


def digest(ids: Sequence[int]) -> int:
    """64 bits that stand for a prompt: in KV blocks, and as the seed of its answer."""
    raw = hashlib.blake2b(array("Q", ids).tobytes(), digest_size=8).digest()
    return int.from_bytes(raw, "big")


def mix(seed: int, index: int) -> int:
    """32 well-mixed bits for place `index` of the answer `seed` (splitmix64's finalizer)."""
    x = (seed + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x >> 32


def text_of(tokens: int, tag: str = "text") -> str:
    """A prompt that tokenizes to exactly `tokens` tokens; another `tag`, another prompt.

    Special tokens come on top: one for a completion, more for a chat.
    """
    seed = zlib.crc32(tag.encode())
    return "".join(OUTPUT[mix(seed, place) % WORDS].text for place in range(tokens)).strip()


class Kind(Enum):
    """The part of an answer that a token belongs to."""

    CONTENT = "content"
    REASONING = "reasoning"
    REFUSAL = "refusal"
    TOOL = "tool"


@attrs.frozen(eq=False)
class Piece:
    """A token of an answer, with its JSON form at hand."""

    token: int
    text: str
    encoded: bytes
    """The text as a JSON string."""
    delta: bytes
    """What it adds to a chat message, as a JSON object."""
    kind: Kind = Kind.CONTENT
    call: int = 0
    """Of a tool call's piece: which call."""
    opens: dict[str, Any] | None = None
    """Of the first piece of a tool call: the call, its arguments as far as they go."""


def piece(token: int, text: str, kind: Kind = Kind.CONTENT) -> Piece:
    """A piece of text with its JSON forms worked out."""
    encoded = msgspec.json.encode(text)
    delta = b'{"%b":%b}' % (kind.value.encode(), encoded) if text else b"{}"
    return Piece(token, text, encoded, delta, kind)


def _output_words() -> tuple[Piece, ...]:
    """Three-letter words, each one token with an id of its own."""
    words: dict[int, Piece] = {}
    for letters in product("bdfgklmnprstvwz", "aeiou", "dklmnrst"):
        text = " " + "".join(letters)
        (token,) = tokenize(text)
        if token not in words:
            words[token] = piece(token, text)
        if len(words) == WORDS:
            break
    return tuple(words.values())


OUTPUT = _output_words()
END = piece(EOS, "")

_FAMILY = "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}"
_COMBINED = "e\N{COMBINING ACUTE ACCENT}"
_WIDE_TEXTS = ("日", "本", "語", "é", _COMBINED, "ñ", "🎉", "🐋", _FAMILY, " ß", "한", "กำ")


def _wide_words() -> tuple[tuple[Piece, ...], ...]:
    """Characters of several bytes: a token whose text is empty, then one with all of it."""
    words = []
    for place, text in enumerate(_WIDE_TEXTS):
        (whole, *_) = tokenize(text)
        words.append((piece(HALVES + place, ""), piece(whole, text)))
    return tuple(words)


WIDE = _wide_words()
