"""For tests of one's own operators."""

from flowengine.testing.conformance import check_operator
from flowengine.testing.verify import Comparison, verify

__all__ = ["Comparison", "check_operator", "verify"]
