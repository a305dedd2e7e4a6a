"""Operators that choose which samples share a pack."""

from flowengine.operators.packing.cost_packer import CostPacker
from flowengine.operators.packing.predictive_packer import PredictivePacker

__all__ = ["CostPacker", "PredictivePacker"]
