"""The packer alone: microbatches from lengths, without a graph."""

import itertools

import numpy as np

from flowengine.schedule import pack

lengths = np.random.default_rng(0).lognormal(6, 1, size=10_000).astype(int).clip(8, 8192)
ids, offsets = pack(lengths, max_tokens=8192)
fills = [lengths[ids[a:b]].sum() / 8192 for a, b in itertools.pairwise(offsets)]
print(f"{len(lengths):,} samples in {len(fills):,} packs, {np.mean(fills):.2%} full on average")
print(f"one sample per row would be {lengths.mean() / lengths.max():.2%} full")
