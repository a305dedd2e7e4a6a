"""Operators that choose which samples share a pack."""

from flowengine.operators.packing.cost_packer import CostPacker

__all__ = ["CostPacker"]
