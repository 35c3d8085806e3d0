"""Log probabilities of emulated tokens: made up, but the same for a token everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narwhal.emulator.tokens import OUTPUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.emulator.tokens import Piece

_STEP = 0.625
"""Between alternatives, so that each is less likely than the one before."""


def _chosen(piece: Piece) -> float:
    return -(piece.token % 64) / 64


def _ranked(piece: Piece, count: int) -> list[tuple[str, float]]:
    """The token itself and the most likely others, `count` in all, at least the token."""
    top = _chosen(piece)
    others = [word.text for word in OUTPUT[: count + 1] if word.text != piece.text]
    ranked = [(piece.text, top)]
    ranked += ((text, top - _STEP * (rank + 1)) for rank, text in enumerate(others))
    return ranked[: max(count, 1)]


def completion_logprobs(pieces: Sequence[Piece], count: int, offset: int) -> dict[str, Any]:
    """The `logprobs` of a completion whose first token starts at character `offset`."""
    offsets = []
    for piece in pieces:
        offsets.append(offset)
        offset += len(piece.text)
    return {
        "text_offset": offsets,
        "token_logprobs": [_chosen(piece) for piece in pieces],
        "tokens": [piece.text for piece in pieces],
        "top_logprobs": [dict(_ranked(piece, count)) for piece in pieces],
    }


def chat_logprobs(pieces: Sequence[Piece], count: int) -> dict[str, Any]:
    """The `logprobs` of a chat, with `count` alternatives for each token."""
    return {
        "content": [
            {
                **_entry(piece.text, _chosen(piece)),
                "top_logprobs": [_entry(*item) for item in _ranked(piece, count)][:count],
            }
            for piece in pieces
        ]
    }


def _entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
