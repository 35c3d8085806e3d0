"""What `parse_request` takes, as JSON Schema: for programs that ask before they send.

A test holds the two against each other, with bodies that one of them might take and the other
not. What a schema cannot say: a number such as `1.0` is no integer here, and a key that stands
twice in an object is refused.
"""

from __future__ import annotations

from typing import Any

from narwhal.model import Route
from narwhal.wire.fields import MOST_TOKENS

Schema = dict[str, Any]

_COUNT: Schema = {"type": ["integer", "null"], "minimum": 1, "maximum": MOST_TOKENS}
_FLAG: Schema = {"type": ["boolean", "null"]}
# The same as `False`, which generators of clients stumble over.
_NOTHING: Schema = {"not": {}}
_OURS = "Made by the router for its engines: leave it out."
_TOKEN_IDS: Schema = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0},
    "minItems": 1,
}


def request_schema(route: Route, *, model: str) -> Schema:
    """The schema of a request body on `route`, for a fleet that serves `model`.

    Fields that it does not name are the engines' to judge, and pass.
    """
    shared: Schema = {
        "model": {"const": model, "description": "The model of this fleet."},
        "stream": {**_FLAG, "description": "Answer with server-sent events."},
        "stream_options": {
            "type": ["object", "null"],
            "description": "Only with `stream`.",
            "properties": {"include_usage": _FLAG},
        },
        "max_tokens": {**_COUNT, "description": "Most tokens of the answer."},
        "max_completion_tokens": {**_COUNT, "description": "The chat route's newer name of it."},
        "n": _one("One answer to a request: a prefill hands over the cache of one sequence."),
        "best_of": _one("One sequence, for the same reason."),
        "use_beam_search": {"enum": [False, None]},
        "truncate_prompt_tokens": {"type": ["integer", "null"], "minimum": 0},
        "prompt_embeds": {"type": "null", "description": "Send text or token ids."},
        "kv_transfer_params": {"type": "null", "description": _OURS},
        "ec_transfer_params": {"type": "null", "description": _OURS},
        "vllm_xargs": {
            "type": ["object", "null"],
            "properties": {"kv_transfer_params": _NOTHING, "ec_transfer_params": _NOTHING},
        },
    }
    own = _chat() if route is Route.CHAT else _completion()
    asked = "messages" if route is Route.CHAT else "prompt"
    rules = [_OPTIONS_OF_STREAMS] if route is Route.CHAT else [_OPTIONS_OF_STREAMS, _ECHO_ALONE]
    return {
        "type": "object",
        "required": ["model", asked],
        "properties": shared | own,
        "allOf": rules,
    }


def _one(description: str) -> Schema:
    return {"type": ["integer", "null"], "enum": [1, None], "description": description}


def _chat() -> Schema:
    return {
        "messages": {
            "type": "array",
            "minItems": 1,
            "description": "The conversation.",
            "items": {
                "type": "object",
                "properties": {
                    "role": {"description": "Such as `user`."},
                    "content": {"description": "Text, or a list of parts."},
                    "tool_calls": {"description": "Calls that the assistant made."},
                },
            },
        },
        "tools": {"description": "Functions that the model may call."},
        "echo": {"enum": [False, None]},
    }


def _completion() -> Schema:
    text: Schema = {"type": "string"}
    return {
        "prompt": {
            "description": "One prompt, as text or as token ids; also in a list of its own.",
            "anyOf": [
                text,
                _TOKEN_IDS,
                {"type": "array", "items": text, "minItems": 1, "maxItems": 1},
                {"type": "array", "items": _TOKEN_IDS, "minItems": 1, "maxItems": 1},
            ],
        },
        "echo": {**_FLAG, "description": "Not with `logprobs`."},
    }


# An empty object asks for nothing, and passes.
_OPTIONS_OF_STREAMS: Schema = {
    "if": {
        "required": ["stream_options"],
        "properties": {"stream_options": {"type": "object", "minProperties": 1}},
    },
    "then": {"required": ["stream"], "properties": {"stream": {"const": True}}},
}
_ECHO_ALONE: Schema = {
    "if": {"required": ["echo"], "properties": {"echo": {"const": True}}},
    "then": {"properties": {"logprobs": {"type": "null"}}},
}
