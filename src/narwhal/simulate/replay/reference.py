"""The reference profiles of `configs/profiles`, and where each of their figures is from.

`python -m narwhal.simulate.replay.reference` writes them anew. `configs/profiles/README.md` has
the sources.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from narwhal.profiles import ProfileRow, ProfileStore, write_store
from narwhal.simulate.replay.roofline import (
    Accelerator,
    FirstTokens,
    Model,
    Reached,
    engine_profile,
    mean_reached,
)

ENGINES = tuple(f"e{number}" for number in range(8))

# Model cards and config.json of Llama 3.1.
LLAMA_8B = Model(
    name="Llama 3.1 8B",
    parameters=8.03e9,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    context=131072,
)
LLAMA_70B = Model(
    name="Llama 3.1 70B",
    parameters=70.6e9,
    layers=80,
    heads=64,
    kv_heads=8,
    head_dim=128,
    context=131072,
)

# The data sheet's BF16 figure is with sparsity: half of it is dense. The network is what
# Mooncake's Transfer Engine carried over eight adapters of 400 Gbit/s: 190 GB/s.
H100 = Accelerator(name="H100 SXM", flops=989e12, bandwidth=3.35e12, memory=80e9, network=190e9 / 8)

# TensorRT-LLM's times to the first token, for prompts of 128 and 2048 tokens. On the H100 they
# were published for FP8, whose peak is twice as high; on the A100 for FP16.
_FP8, _A100 = 1979e12, 312e12
LLAMA_7B_MEASURED = (
    FirstTokens(flops=_FP8, parameters=6.74e9, short=(128, 0.007), long=(2048, 0.036)),
    FirstTokens(flops=_A100, parameters=6.74e9, short=(128, 0.016), long=(2048, 0.133)),
)
LLAMA_70B_MEASURED = (
    FirstTokens(flops=4 * _FP8, parameters=68.98e9, short=(128, 0.026), long=(2048, 0.109)),
    FirstTokens(flops=4 * _A100, parameters=68.98e9, short=(128, 0.047), long=(2048, 0.377)),
)


def reached_by(measured: tuple[FirstTokens, ...]) -> Reached:
    """What engines of a size reach, by the measurements of that size; the first is on the H100."""
    return Reached(
        compute=mean_reached(measured),
        attention=0.35,  # FlashAttention-2 on the H100; version 3 reaches up to twice that
        bandwidth=0.77,  # vLLM, a stream alone on an A100
        memory=0.88,  # vLLM's default of 0.9, less room for activations
        prefill_s=measured[0].overhead,
        handoff_s=0.005,  # ours: nobody publishes the exchange before a transfer
        requests=256,
    )


@attrs.frozen(kw_only=True)
class Reference:
    """One store: the profile of its engines, and its notes."""

    file: str
    model: Model
    count: int
    """Accelerators of an engine."""
    measured: tuple[FirstTokens, ...]

    @property
    def store(self) -> ProfileStore:
        """The same profile for all engines."""
        reached = reached_by(self.measured)
        profile = engine_profile(self.model, H100, self.count, reached)
        return ProfileStore(
            rows=tuple(ProfileRow(iid=iid, profile=profile) for iid in ENGINES),
            meta={
                "about": f"{self.model.name} in BF16 on {self.count} x {H100.name}: derived, not "
                "measured; README.md has the sources",
                "made_by": "python -m narwhal.simulate.replay.reference",
                "reached": attrs.asdict(reached),
            },
        )


REFERENCES = (
    Reference(file="h100-8b.json", model=LLAMA_8B, count=1, measured=LLAMA_7B_MEASURED),
    Reference(file="h100-70b.json", model=LLAMA_70B, count=4, measured=LLAMA_70B_MEASURED),
)

if __name__ == "__main__":
    for reference in REFERENCES:
        write_store(Path("configs/profiles") / reference.file, reference.store)
