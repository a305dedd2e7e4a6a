"""Where samples come from."""

from flowengine.operators.sources.conversations import Conversations
from flowengine.operators.sources.digit_cards import WORDS, DigitCards
from flowengine.operators.sources.files import ArrowRecords, JsonRecords, TarRecords
from flowengine.operators.sources.fit import Cells, Fit, Fitting
from flowengine.operators.sources.records import InMemory, Record, Records
from flowengine.operators.sources.sound_cards import SOUND_WORDS, SoundCards
from flowengine.operators.sources.template import Template

__all__ = [
    "SOUND_WORDS",
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
    "SoundCards",
    "TarRecords",
    "Template",
]
