"""Which weights a feature may be made with."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import small_graph
from running import run_graph


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_no_feature_is_older_than_allowed(staleness: int, tmp_path: Path) -> None:
    """The catalogue shows features of step s made with version max(0, s - staleness), no older."""
    ran = run_graph(small_graph(steps=8, staleness=staleness), tmp_path)
    rows = ran.rows("encoder")
    assert {row["step"] for row in rows} == set(range(8))
    assert all(row["version"] == max(0, row["step"] - staleness) for row in rows)
    assert [step.staleness["encoder"] for step in ran.steps] == [
        min(step, staleness) for step in range(8)
    ]


def test_staleness_changes_the_losses(tmp_path: Path) -> None:
    """Stale features train, but not as the plain loop does."""
    fresh = run_graph(small_graph(steps=8), tmp_path / "fresh")
    stale = run_graph(small_graph(steps=8, staleness=2), tmp_path / "stale")
    assert stale.losses[:1] == fresh.losses[:1]
    assert stale.losses[-1] != fresh.losses[-1]


@pytest.mark.slow
def test_a_frozen_encoder_may_run_ahead(tmp_path: Path) -> None:
    """A frozen encoder gives the same losses with a window of one pack, with none, and with a
    staleness, since its features never age."""
    runs = [
        run_graph(small_graph(steps=6, freeze=True, **setting), tmp_path / str(i), runtime=runtime)  # type: ignore[arg-type]
        for i, (setting, runtime) in enumerate(
            [({}, "inline"), ({"window": 1}, "inline"), ({"staleness": 3}, "local")]
        )
    ]
    assert runs[0].losses == runs[1].losses == runs[2].losses
    assert all(row["version"] == 0 for run in runs for row in run.rows("encoder"))


def test_held_out_features_are_never_stale(tmp_path: Path) -> None:
    """An evaluation uses the weights of its step, whatever the staleness."""
    ran = run_graph(small_graph(steps=4, staleness=2, evaluate=6), tmp_path)
    held_out = [row for row in ran.rows("encoder") if row["held_out"]]
    assert held_out
    assert {row["version"] for row in held_out} == {4}
