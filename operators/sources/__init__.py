"""Where samples come from."""

from flowengine.operators.sources.conversations import Conversations
from flowengine.operators.sources.digit_cards import WORDS, DigitCards
from flowengine.operators.sources.files import ArrowRecords, JsonRecords, TarRecords
from flowengine.operators.sources.fit import Cells, Fit, Fitting
from flowengine.operators.sources.records import InMemory, Record, Records
from flowengine.operators.sources.template import Template

__all__ = [
    "WORDS",
    "ArrowRecords",
    "Cells",
    "Conversations",
    "DigitCards",
    "Fit",
    "Fitting",
    "InMemory",
    "JsonRecords",
    "Record",
    "Records",
    "TarRecords",
    "Template",
]
