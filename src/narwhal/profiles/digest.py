"""What a measured speed is bound to."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Annotated, get_args

from narwhal.config.texts import Name, TextKind

if TYPE_CHECKING:
    from collections.abc import Mapping

# Says how the digest was made. Other programs write `sha256:` and bind a row to one process of
# the engine; theirs must never be compared with ours.
_SCHEME = "generation-1:"
_DIGEST = re.compile(r"generation-1:sha256:[0-9a-f]{64}")


def generation_digest(version: str, model: str, contract: Mapping[str, object] | None) -> str:
    """The digest of what changes an engine's speed.

    That is the engine's version, the model, and the fleet file's `engine_contract`, in which the
    order of keys plays no part and none at all is the same as an empty one. The process is not in
    it: an engine that restarts as it was keeps its profile.
    """
    facts = {"version": version, "model": model, "contract": dict(contract or {})}
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{_SCHEME}sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def is_ours(digest: str | None) -> bool:
    """Whether `generation_digest` makes such digests. Those of other programs bind nothing."""
    return digest is not None and digest.startswith(_SCHEME)


def _complaint(digest: str) -> str | None:
    if is_ours(digest) and not _DIGEST.fullmatch(digest):
        return "is cut or changed (without it, the row counts as unbound)"
    name: TextKind = get_args(Name)[1]
    return name.complaint(digest)


Digest = Annotated[
    str,
    TextKind(
        name="text",
        form="as `generation_digest` makes it, or of another program",
        complaint=_complaint,
    ),
]
