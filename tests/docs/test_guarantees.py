"""docs/guarantees.md and the tests of faults agree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from campaign import KINDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]
FAULT_TESTS = ["test_faults.py", "test_recovery.py", "test_shortage.py"]
"""Files of which every test is one of a fault, or of how faults are had (ABOUT)."""

ABOUT = {
    "test_seeds_repeat",
    "test_a_segment_that_cannot_be_had_leaves_nothing",
    "test_memory_that_torch_does_not_get_is_a_shortage",
}


def names_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def named() -> set[str]:
    return set(re.findall(r"`(test_\w+)", PAGE)) - {"test_guarantees"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_every_row_is_tested(row: str) -> None:
    """Each names what is lost, repeated and reordered, and a test that there is."""
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert len(cells) == 6
    assert all(cells)
    known = {name for path in (ROOT / "tests").rglob("test_*.py") for name in names_of(path)}
    found = set(re.findall(r"`(test_\w+)", cells[-1]))
    assert found
    assert found <= known


def test_every_fault_test_has_a_row() -> None:
    """A fault that is tested is told of."""
    tests = {name for file in FAULT_TESTS for name in names_of(ROOT / "tests" / "runtime" / file)}
    assert tests - ABOUT <= named()


def test_every_kind_of_fault_has_a_row() -> None:
    """So is each kind of fault of the campaign, and no other."""
    assert set(re.findall(r"test_a_fault_changes_nothing\[([\w ]+)\]", PAGE)) == set(KINDS)
