"""What cannot be served in two legs is refused before the first of them.

A prefill hands over the KV cache of one prompt and one sequence, made for one destination. The
fields here would ask for more than that, or would let the two legs see different prompts: an
engine that pulls the cache of another prompt answers with wrong tokens and status 200, or dies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narwhal.model import InvalidRequest, Route
from narwhal.wire.fields import is_null, read_boolean, read_integer, read_object

if TYPE_CHECKING:
    from narwhal.wire.fields import Fields


def refuse_unsplittable(route: Route, fields: Fields) -> None:
    """Raise `InvalidRequest` for a field that two legs cannot carry; each says what to do."""
    _refuse_transfer_parameters(fields)
    for name in ("n", "best_of"):
        if read_integer(fields, name) not in (None, 1):
            raise InvalidRequest(
                f"{name!r} must be 1: a prefill hands over the cache of one sequence. Send one "
                "request for each answer.",
                param=name,
            )
    if read_boolean(fields, "use_beam_search"):
        raise InvalidRequest(
            "'use_beam_search' is not supported: a prefill hands over the cache of one sequence.",
            param="use_beam_search",
        )
    if not is_null(fields.get("prompt_embeds")):
        raise InvalidRequest(
            "'prompt_embeds' is not supported; send 'prompt' as text or token ids.",
            param="prompt_embeds",
        )
    truncate = read_integer(fields, "truncate_prompt_tokens")
    if truncate is not None and truncate < 0:
        # The engine derives the length from max_tokens, which differs between the legs.
        raise InvalidRequest(
            "'truncate_prompt_tokens' must not be negative; send the number of tokens to keep.",
            param="truncate_prompt_tokens",
        )
    _refuse_echoed_logprobs(route, fields)


def _refuse_transfer_parameters(fields: Fields) -> None:
    """An engine does what these say, to the point of dying of them: they are the router's."""
    for name in ("kv_transfer_params", "ec_transfer_params"):
        if not is_null(fields.get(name)):
            raise InvalidRequest(
                f"{name!r} cannot be set by a client: the router makes it. Leave it out.",
                param=name,
            )
    # vLLM merges this object into the place where it keeps the two others.
    extra = read_object(fields, "vllm_xargs") or {}
    for name in ("kv_transfer_params", "ec_transfer_params"):
        if name in extra:
            raise InvalidRequest(
                f"{name!r} cannot be set by a client, nor through 'vllm_xargs'. Leave it out.",
                param="vllm_xargs",
            )


def _refuse_echoed_logprobs(route: Route, fields: Fields) -> None:
    """Echoing makes vLLM compute the prompt's log-probabilities where it decodes.

    It cannot, with a cache that it received: it reads memory that nothing was written to, and
    may die of it. On the chat route `echo` alone asks for them, on the other only with `logprobs`.
    """
    if not read_boolean(fields, "echo"):
        return
    if route is Route.CHAT:
        raise InvalidRequest(
            "'echo' is not supported on this route; the last message is yours to prepend.",
            param="echo",
        )
    if not is_null(fields.get("logprobs")):
        raise InvalidRequest(
            "'echo' cannot be combined with 'logprobs'; ask for 'prompt_logprobs' instead.",
            param="echo",
        )
