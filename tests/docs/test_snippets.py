"""What the documents show works as shown."""

from __future__ import annotations

import re
import shlex
import sys
import types
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowengine.cli.main import main

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_python_snippets_run(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python blocks of a document run, one after the other, in one namespace."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("snippet")
    monkeypatch.setitem(sys.modules, "snippet", module)
    for block in blocks(document, "python"):
        exec(compile(block, str(document), "exec"), vars(module))


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_shown_commands_exist(document: Path) -> None:
    """Every flowengine command line in a document names a command and options that exist."""
    for block in blocks(document, "console"):
        for line in block.splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words[:1] == ["flowengine"] and len(words) > 1 and not words[1].startswith("-"):
                shown = CliRunner().invoke(main, [words[1], "--help"])
                assert shown.exit_code == 0, line
                for option in (word for word in words[2:] if word.startswith("-")):
                    assert option.partition("=")[0] in shown.output, line


def test_local_links_lead_somewhere() -> None:
    """Every link to a file of the project names a file that is there."""
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
