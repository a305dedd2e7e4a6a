"""docs/exit-codes.md and the command line agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flowengine import errors
from flowengine.cli.exits import MEANINGS, exit_code

PAGE = (Path(__file__).parents[2] / "docs" / "exit-codes.md").read_text(encoding="utf-8")


def test_every_code_is_told_with_its_meaning() -> None:
    """The page's table is that of `flowengine --help`."""
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", PAGE, re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == MEANINGS


@pytest.mark.parametrize(("name", "code"), re.findall(r"`(\w+Error)` (\d+)", PAGE))
def test_exceptions_have_the_codes_that_the_page_says(name: str, code: str) -> None:
    """An error of that kind ends the command with that code."""
    assert exit_code(getattr(errors, name)("x")) == int(code)
