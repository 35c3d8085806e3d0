"""Putting streamed fragments of a JSON value together again, whatever fields an engine sends.

Strings are joined, lists joined or, where their items are numbered by `index`, merged item by
item, objects merged key by key, and of anything else the last value stays. `null` says nothing
and replaces nothing. Parts of strings are collected and joined once: the time is linear.
"""

from __future__ import annotations

from typing import Any, Final

Absent: Final = object()
"""What `merge` starts from."""

# Strings that come whole, and again whole if they come again.
_WHOLE = frozenset(
    {"id", "type", "role", "object", "model", "finish_reason", "stop_reason", "routed_experts"}
)
# Lists whose items are keyed by what a model wrote, so that an `index` in them is a token.
_NEVER_INDEXED = frozenset({"top_logprobs"})


class _Text:
    """A string in the making."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[str] = []


class _Indexed:
    """A list in the making whose items say which they are."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: dict[int, Any] = {}


def merge(old: object, new: object, key: str) -> object:
    """Add the fragment `new` to what was merged of field `key` before; return what it is now.

    `old` belongs to the caller's tree and may be changed in place; `new` is never changed.
    """
    if new is None:
        return None if old is Absent else old
    if isinstance(new, str):
        return _merge_string(old, new, key)
    if isinstance(new, dict):
        fields: dict[str, object] = old if isinstance(old, dict) else {}
        for name, value in new.items():
            fields[name] = merge(fields.get(name, Absent), value, name)
        return fields
    if isinstance(new, list):
        return _merge_list(old, new, key)
    return new


def settle(node: Any) -> Any:
    """The value that a merged tree stands for; items of indexed lists in order of their index."""
    if isinstance(node, _Text):
        return "".join(node.parts)
    if isinstance(node, dict):
        return {key: settle(value) for key, value in node.items()}
    if isinstance(node, _Indexed):
        return [settle(node.items[index]) for index in sorted(node.items)]
    return node


def _merge_string(old: object, new: str, key: str) -> object:
    if key in _WHOLE:
        # Some engines send an empty one with every later fragment.
        return new if new or not isinstance(old, str) else old
    text = old if isinstance(old, _Text) else _Text()
    # The name of a function comes once; an engine that repeats it does not mean a longer name.
    if key != "name" or text.parts != [new]:
        text.parts.append(new)
    return text


def _merge_list(old: object, new: list[Any], key: str) -> object:
    if isinstance(old, _Indexed):
        for item in new:
            _merge_item(old, item)
        return old
    joined: list[Any] = old if isinstance(old, list) else []
    if not joined and new and key not in _NEVER_INDEXED and all(map(_has_index, new)):
        return _merge_list(_Indexed(), new, key)
    joined.extend(new)
    return joined


def _merge_item(indexed: _Indexed, item: Any) -> None:
    # An engine that numbers only some: nothing is lost, and nothing mixed up.
    index = item["index"] if _has_index(item) else max(indexed.items) + 1
    indexed.items[index] = merge(indexed.items.get(index, Absent), item, "")


def _has_index(item: Any) -> bool:
    return isinstance(item, dict) and type(item.get("index")) is int
