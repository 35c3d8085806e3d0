"""Any bytes parse or raise the one expected error, and any chunking of them gives the same.

One file in `targets` for each parser, `run.py` to search for an input that breaks its invariant.
"""
