"""Which engine takes a leg. Pure: candidates in, a choice with its reason out."""

from narwhal.placement.choose import Candidate, Choice, Why, choose, eligible

__all__ = ["Candidate", "Choice", "Why", "choose", "eligible"]
