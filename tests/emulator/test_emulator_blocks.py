from __future__ import annotations

from narwhal.emulator.blocks import BlockPool


def test_blocks_keep_what_was_written_until_they_are_taken_again() -> None:
    pool = BlockPool(16, None)
    blocks = pool.take(2, digest=7)
    pool.give_back(blocks)
    assert pool.holds(blocks, 7)
    pool.take(1, digest=8)
    assert not pool.holds(blocks, 7)


def test_blocks_given_back_last_are_taken_first() -> None:
    pool = BlockPool(16, None)
    first, second = pool.take(2, digest=1), pool.take(2, digest=2)
    pool.give_back(first)
    pool.give_back(second)
    assert pool.take(3, digest=3) == [*second, first[0]]


def test_what_a_block_holds_includes_its_place() -> None:
    pool = BlockPool(16, None)
    one, two = pool.take(2, digest=1)
    assert pool.holds([one, two], 1)
    assert pool.holds([one], 1)
    assert not pool.holds([two, one], 1)


def test_a_capacity_bounds_what_is_taken() -> None:
    pool = BlockPool(16, 64)
    assert pool.capacity == 4
    blocks = pool.take(3, digest=1)
    assert (pool.fits(1), pool.fits(2), pool.usage) == (True, False, 0.75)
    pool.give_back(blocks)
    assert (pool.fits(4), pool.used) == (True, 0)


def test_the_null_block_and_blocks_never_handed_out_do_not_exist() -> None:
    pool = BlockPool(16, None)
    pool.take(1, digest=1)
    assert [pool.exists(block) for block in (0, 1, 2, -1, "1", True, None)] == [
        False, True, False, False, False, False, False,
    ]  # fmt: skip


def test_tokens_take_whole_blocks() -> None:
    assert [BlockPool(16, None).needed(tokens) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]
