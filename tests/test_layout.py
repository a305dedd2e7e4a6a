"""The folders at the top level are the packages' own."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["operators", "graphs"])
def test_links_are_links(name: str) -> None:
    """flowengine/operators and flowengine/graphs are relative links to the top-level folders."""
    link = ROOT / "flowengine" / name
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{name}"
    assert importlib.import_module(f"flowengine.{name}")


@pytest.mark.parametrize("name", ["operators", "graphs"])
def test_the_bare_name_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing a top-level folder by its bare name fails: its classes would be others."""
    monkeypatch.syspath_prepend(str(ROOT))
    sys.modules.pop(name, None)
    with pytest.raises(ImportError, match=f"import flowengine.{name}"):
        importlib.import_module(name)


def test_exported_names() -> None:
    """The package exports these names and no others."""
    import flowengine

    assert sorted(flowengine.__all__) == [
        "Credits",
        "Gang",
        "Graph",
        "Skip",
        "Step",
        "__version__",
        "check",
        "run",
    ]
    assert all(hasattr(flowengine, name) for name in flowengine.__all__)
