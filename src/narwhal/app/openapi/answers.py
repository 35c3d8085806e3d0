"""Schemas of what the routes answer when all is well.

Completions are the engines' own: only what every client relies on is required, and what else an
engine adds is allowed.
"""

from __future__ import annotations

from typing import Any

from narwhal.app.openapi.state import state_schemas

_TEXT: dict[str, Any] = {"type": "string"}
_MAYBE_TEXT: dict[str, Any] = {"type": ["string", "null"]}
_FLAG: dict[str, Any] = {"type": "boolean"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_MAYBE_SECONDS: dict[str, Any] = {"type": ["number", "null"]}
_TEXTS: dict[str, Any] = {"type": "array", "items": _TEXT}
_OBJECT: dict[str, Any] = {"type": "object"}


def ref(name: str) -> dict[str, Any]:
    """A reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def _of(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": required | (optional or {}),
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def answer_schemas() -> dict[str, Any]:
    """The schemas of good answers, by name."""
    return _completion_schemas() | _page_schemas() | state_schemas() | _lifecycle_schemas()


def _completion_schemas() -> dict[str, Any]:
    head = {"id": _TEXT, "created": {"type": "integer"}, "model": _TEXT}
    usage = {"usage": {"anyOf": [ref("Usage"), {"type": "null"}]}}
    choice = {"index": _COUNT, "finish_reason": _MAYBE_TEXT}
    message = _of({"role": {"const": "assistant"}}, {"content": _MAYBE_TEXT})
    return {
        "Usage": _of({"prompt_tokens": _COUNT}, {"completion_tokens": _COUNT}),
        "ChatCompletion": _of(
            head
            | {"object": {"const": "chat.completion"}}
            | {"choices": _list(_of(choice | {"message": message}))},
            usage,
        ),
        "ChatCompletionChunk": _of(
            head
            | {"object": {"const": "chat.completion.chunk"}}
            | {"choices": _list(_of({"index": _COUNT, "delta": _OBJECT}))},
            usage,
        ),
        "Completion": _of(
            head
            | {"object": {"const": "text_completion"}}
            | {"choices": _list(_of(choice | {"text": _TEXT}))},
            usage,
        ),
    }


def _page_schemas() -> dict[str, Any]:
    model = {"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT}
    return {
        "Model": _of(model),
        "Models": _of({"object": {"const": "list"}, "data": _list(ref("Model"))}),
        "Health": _of({"status": {"const": "ok"}}),
        "Ready": _of({"ready": {"const": True}}),
        "NotReady": _of({"ready": {"const": False}, "reasons": {**_TEXTS, "minItems": 1}}),
    }


def _lifecycle_schemas() -> dict[str, Any]:
    return {
        "EngineStatus": _of(
            {
                "iid": _TEXT,
                "role": ref("Role"),
                "state": ref("EngineState"),
                "reason": _TEXT,
                "residents": _COUNT,
                "ready_to_stop": _FLAG,
                "checking": _MAYBE_TEXT,
                "process_start_s": _MAYBE_SECONDS,
                "drain": {"anyOf": [ref("Drain"), {"type": "null"}]},
            }
        ),
        "Engines": _of({"engines": _list(ref("EngineStatus"))}),
        "Readmitted": _of({"engine": ref("EngineStatus"), "passed": _TEXTS, "skipped": _TEXTS}),
        "NotReadmitted": _of(
            {"error": ref("ErrorObject"), "engine": ref("EngineStatus")},
            {
                "passed": _TEXTS,
                "skipped": _TEXTS,
                "failed": _of({"check": _TEXT, "reason": _TEXT}),
            },
        ),
    }
