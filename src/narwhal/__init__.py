"""A router for LLM fleets that split prefill from decode, in which every limit is a cancel scope.

Operators run `narwhal-trio serve`; applications embed `open_router`.
"""

__version__ = "0.1.0"
