"""The KV cache of one engine as numbered blocks, and who wrote what into them.

Whether a late handoff yields right or wrong tokens is a question of what the blocks hold when
they are read, so that is what is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# What use is a share of where there is no capacity: whoever watches sees it rise and fall.
_MANY_BLOCKS = 1 << 20


class BlockPool:
    """Blocks of `block_size` tokens; at most `capacity_tokens` of them, or any number.

    A block that was given back keeps its contents until it is taken again, and the one given
    back last is taken first: the least favourable order for a handoff that comes too late.
    """

    def __init__(self, block_size: int, capacity_tokens: int | None) -> None:
        self.block_size = block_size
        self.capacity = None if capacity_tokens is None else capacity_tokens // block_size
        self.used = 0
        self._free: list[int] = []
        # (digest, place) of the prompt a block was last written for. Number 0 stays unused,
        # as in vLLM, where it is the null block.
        self._holds: list[tuple[int, int] | None] = [None]

    @property
    def usage(self) -> float:
        """The share of the cache in use, 0 to 1; without a capacity, of a very large one."""
        return min(1.0, self.used / (self.capacity or _MANY_BLOCKS))

    def needed(self, tokens: int) -> int:
        """Blocks that `tokens` tokens take."""
        return -(-tokens // self.block_size)

    def fits(self, blocks: int) -> bool:
        """Whether that many blocks can be taken now."""
        return self.capacity is None or self.used + blocks <= self.capacity

    def take(self, blocks: int, digest: int) -> list[int]:
        """Take `blocks` blocks and write the prompt `digest` into them; they must fit."""
        taken: list[int] = []
        for place in range(blocks):
            if self._free:
                block = self._free.pop()
                self._holds[block] = (digest, place)
            else:
                block = len(self._holds)
                self._holds.append((digest, place))
            taken.append(block)
        self.used += blocks
        return taken

    def give_back(self, blocks: Sequence[int]) -> None:
        """Free `blocks`, which must have been taken; what is in them stays readable."""
        self._free.extend(reversed(blocks))
        self.used -= len(blocks)

    def exists(self, block: object) -> bool:
        """Whether this is the number of a block that was ever handed out."""
        return type(block) is int and 0 < block < len(self._holds)

    def holds(self, blocks: Sequence[int], digest: int) -> bool:
        """Whether `blocks` hold the prompt `digest` from its beginning, in order."""
        return all(self._holds[block] == (digest, place) for place, block in enumerate(blocks))
