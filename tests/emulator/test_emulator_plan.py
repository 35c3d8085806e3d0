from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.emulator.plan import Style, Wish, make_plan
from narwhal.emulator.tokens import EOS, OUTPUT, Kind, detokenize, digest, text_of, tokenize


def text(wish: Wish, seed: int = 7, *, garbled: bool = False) -> str:
    plan = make_plan(wish, seed, garbled=garbled)
    return "".join(plan[place].text for place in range(plan.length))


def ids(wish: Wish, seed: int = 7, *, garbled: bool = False, sample: int = 0) -> list[int]:
    plan = make_plan(wish, seed, garbled=garbled, sample=sample)
    return [plan[place].token for place in range(plan.length)]


def test_one_prompt_has_one_answer() -> None:
    wish = Wish(limit=50)
    assert ids(wish) == ids(wish)
    assert ids(wish, 8) != ids(wish, 7)
    assert ids(wish, sample=1) != ids(wish)


@given(st.integers(0, 2**64 - 1), st.booleans(), st.booleans())
def test_an_answer_begins_the_same_whatever_its_limit(
    seed: int, unicode: bool, reasoning: bool
) -> None:
    """A prefill leg's one token is the first of the decode leg's."""
    style = Style(unicode=unicode, reasoning=2 * reasoning)
    long = ids(Wish(limit=20, style=style), seed)
    assert ids(Wish(limit=1, style=style), seed) == long[:1]
    assert ids(Wish(limit=7, style=style), seed) == long[:7]


def test_a_garbled_answer_is_wrong_in_every_word() -> None:
    right, wrong = ids(Wish(limit=200)), ids(Wish(limit=200), garbled=True)
    assert all(one != two for one, two in zip(right, wrong, strict=True))


def test_an_answer_ends_at_its_limit_or_by_itself() -> None:
    cut = make_plan(Wish(limit=5, natural=9), 7)
    assert (cut.length, cut.finish_reason) == (5, "length")
    ended = make_plan(Wish(limit=20, natural=9), 7)
    assert (ended.length, ended.finish_reason) == (9, "stop")
    assert (ended[8].token, ended[8].text) == (EOS, "")
    held = make_plan(Wish(limit=20, natural=9, min_tokens=12), 7)
    assert (held.length, held.finish_reason) == (12, "stop")


def test_a_stop_string_ends_the_answer_and_is_not_shown() -> None:
    whole = text(Wish(limit=30))
    stop = whole[37:42]  # across a boundary between two tokens
    plan = make_plan(Wish(limit=30, stop=("never", stop)), 7)
    shown = "".join(plan[place].text for place in range(plan.length))
    assert shown == whole[: whole.index(stop)]
    assert (plan.finish_reason, plan.stop_reason) == ("stop", stop)
    assert text(Wish(limit=30, stop=(stop,), include_stop=True)).endswith(stop)


def test_text_that_might_begin_a_stop_string_is_held_back() -> None:
    plan = make_plan(Wish(limit=4, stop=("12345",)), 7)
    assert [len(plan[place].text) for place in range(4)] == [0, 4, 4, 8]
    assert text(Wish(limit=4, stop=("12345",))) == text(Wish(limit=4))
    assert plan.finish_reason == "length"


def test_min_tokens_puts_a_stop_off() -> None:
    first = OUTPUT[0].token
    seed = next(seed for seed in range(10_000) if ids(Wish(limit=2), seed)[0] == first)
    stopped = make_plan(Wish(limit=9, stop_token_ids=frozenset({first})), seed)
    assert (stopped.length, stopped.stop_reason) == (1, first)
    assert (
        make_plan(Wish(limit=2, min_tokens=2, stop_token_ids=frozenset({first})), seed).length == 2
    )


def test_wide_characters_take_a_token_with_an_empty_text_first() -> None:
    plan = make_plan(Wish(limit=60, style=Style(unicode=True)), 7)
    texts = [plan[place].text for place in range(60)]
    assert "" in texts
    assert any(len(part.encode()) >= 4 for part in texts)
    assert "\ufffd" not in "".join(texts)


def test_tool_calls_are_whole_and_their_arguments_json() -> None:
    plan = make_plan(Wish(limit=100, tools=("find", "read")), 7)
    heads = [plan[p].opens for p in range(plan.length) if plan[p].opens]
    assert [head["function"]["name"] for head in heads if head] == ["find", "read"]
    assert plan.finish_reason == "tool_calls"
    assert make_plan(Wish(limit=3, tools=("find",)), 7).finish_reason == "length"


def test_reasoning_and_refusal() -> None:
    plan = make_plan(Wish(limit=9, style=Style(reasoning=3, refusal=True)), 7)
    kinds = [plan[place].kind for place in range(9)]
    assert kinds == [Kind.REASONING] * 3 + [Kind.REFUSAL] * 6


@pytest.mark.parametrize("bad", ["", "unicorn", "length:x", "unicode:3", "length:5,,"])
def test_a_style_that_cannot_be_read(bad: str) -> None:
    assert Style.parse(bad) is None


def test_a_style_that_can() -> None:
    assert Style.parse("unicode,length:40,tools") == Style(unicode=True, length=40, tools=1)


@given(st.text())
def test_tokens_give_their_text_back(words: str) -> None:
    """But for pieces that share an id, which a hash cannot exclude."""
    assert tokenize(words) == tokenize(words)
    assert len(detokenize(tokenize(words))) >= 0
    if len(words) < 5 and words.isalpha() and words.isascii():
        assert detokenize(tokenize(words)) == words


@given(st.integers(1, 300), st.text(max_size=5))
def test_a_prompt_of_any_length_can_be_had(size: int, tag: str) -> None:
    assert len(tokenize(text_of(size, tag))) == size


def test_a_digest_depends_on_every_token() -> None:
    assert digest([1, 2, 3]) == digest((1, 2, 3))
    assert len({digest([1, 2, 3]), digest([1, 3, 2]), digest([1, 2]), digest([])}) == 4


def test_an_answer_tokenizes_to_the_ids_it_reported() -> None:
    """So that a conversation can go on from it."""
    assert tokenize(text(Wish(limit=20))) == ids(Wish(limit=20))
