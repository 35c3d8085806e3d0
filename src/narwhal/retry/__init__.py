"""Whether a failed attempt is followed by another, when, and what that costs. Pure."""

from narwhal.retry.credits import Credits
from narwhal.retry.policy import NoRetry, RetryIn, RetryPolicy, Why, classify_status

__all__ = ["Credits", "NoRetry", "RetryIn", "RetryPolicy", "Why", "classify_status"]
