"""The handoff: what a prefill engine answers so that a decoder can pull the KV cache it made.

The descriptor is the producer's own object and goes to the decoder unchanged. It is checked all
the same: a vLLM decoder dies of one with no block ids or without the producer's request id, and
takes every other request it runs with it.
"""

from __future__ import annotations

from typing import Annotated

import attrs
import msgspec

from narwhal.model import HandoffRejected


@attrs.frozen(kw_only=True)
class Handoff:
    """A complete handoff, good for one decode leg."""

    raw: bytes
    """The `kv_transfer_params` object as the engine wrote it."""
    remote_engine_id: str
    """The producer's incarnation: a new one at every start of its process."""
    remote_host: str
    remote_port: int
    blocks: int
    """KV blocks held on the producer until a decoder has read them or the lease ends."""
    remote_request_id: str | None = None
    """`None`: from an engine of a version that does not name requests."""
    remote_num_tokens: int | None = None
    """Tokens in those blocks, where the engine says."""


_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Block = Annotated[int, msgspec.Meta(ge=0)]


class _Descriptor(msgspec.Struct):
    """What a decoder needs of the object. What else is in it, now or later, is not looked at."""

    do_remote_prefill: bool
    remote_engine_id: _Text
    remote_block_ids: list[_Block | list[_Block]]  # flat, or a list for each cache group
    remote_host: _Text
    remote_port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    do_remote_decode: bool | None = False
    remote_request_id: _Text | msgspec.UnsetType = msgspec.UNSET
    remote_num_tokens: int | None = None


_descriptor = msgspec.json.Decoder(_Descriptor)
_keys = msgspec.json.Decoder(dict[str, msgspec.Raw])
# Written only by versions that also write `remote_request_id`.
_KEYS_OF_NAMED_REQUESTS = frozenset(
    {
        "remote_num_tokens",
        "remote_blocks_expiry_time",
        "remote_prefill_cached_tokens",
        "transfer_mode",
    }
)


def parse_handoff(value: msgspec.Raw | bytes | None) -> Handoff:
    """Check the `kv_transfer_params` of a prefill answer; `None` if it had none.

    Raises `HandoffRejected` for a descriptor that would not give a decoder the cache, `missing`
    if there is none at all: the engine then runs without a connector, or let the cache go.

    Without `remote_request_id` a current engine hangs and dies, but older ones neither write
    nor read it. So the key may be absent only where the rest of the object is as old.
    """
    if value is None or bytes(value) == b"null":
        raise HandoffRejected("the prefill answer has no kv_transfer_params", missing=True)
    raw = bytes(value)
    try:
        read = _descriptor.decode(raw)
        problem = _find_problem(read, raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HandoffRejected(f"incomplete kv_transfer_params: {error}", missing=False) from None
    if problem:
        raise HandoffRejected(f"incomplete kv_transfer_params: {problem}", missing=False)
    return Handoff(
        raw=raw,
        remote_engine_id=read.remote_engine_id,
        remote_host=read.remote_host,
        remote_port=read.remote_port,
        blocks=_count_blocks(read.remote_block_ids),
        remote_request_id=read.remote_request_id or None,
        remote_num_tokens=read.remote_num_tokens,
    )


def _find_problem(read: _Descriptor, raw: bytes) -> str | None:
    if not read.do_remote_prefill:
        return "do_remote_prefill is false"
    if read.do_remote_decode:
        return "do_remote_decode is true, which would pin the cache on the decoder as well"
    nested = [isinstance(block, list) for block in read.remote_block_ids]
    if any(nested) and not all(nested):
        return "remote_block_ids mixes ids and lists"
    if _count_blocks(read.remote_block_ids) == 0:
        return "remote_block_ids is empty"
    if read.remote_request_id is msgspec.UNSET:
        newer = _KEYS_OF_NAMED_REQUESTS.intersection(_keys.decode(raw))
        if newer:
            return f"remote_request_id is missing beside {', '.join(sorted(newer))}"
    return None


def _count_blocks(blocks: list[int | list[int]]) -> int:
    return sum(len(block) if isinstance(block, list) else 1 for block in blocks)
