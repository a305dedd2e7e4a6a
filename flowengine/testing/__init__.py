"""For tests of one's own operators."""

from flowengine.testing.conformance import check_operator

__all__ = ["check_operator"]
