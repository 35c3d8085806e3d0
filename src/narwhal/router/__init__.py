"""The life of one request, and the router that gives it an admission, places and engines."""

from narwhal.router.life import RequestLife
from narwhal.router.reply import Reply
from narwhal.router.service import Router
from narwhal.router.stream import Call, leave_nursery

__all__ = ["Call", "Reply", "RequestLife", "Router", "leave_nursery"]
