"""Recorded demand, served by the real router over emulated engines, in virtual time."""
