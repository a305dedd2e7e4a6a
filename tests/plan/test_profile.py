"""Profiles: what is measured and fitted, the file, and plans and runs that follow it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fakes import small_graph

from flowengine import check
from flowengine.api import Lengths
from flowengine.errors import PlanError
from flowengine.plan import Line, Load, apply_plan, leave_out, make_plan, make_setting, read_plan
from flowengine.plan import measure as measuring
from flowengine.plan.contention import measure_slowdown
from flowengine.plan.data import describe_data
from flowengine.plan.measure import fit_line, measure_graph
from flowengine.plan.profile import Profile, StageProfile, read_profile
from flowengine.schedule.arrival import fill_in_order


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> Profile:
    """Of the small graph, without looking at other processes."""
    monkeypatch.setattr(measuring, "measure_slowdown", lambda **_: (1.0, 1.1))
    monkeypatch.setattr(measuring, "STATISTICS", 64)
    graph = small_graph()
    check(graph)
    return measure_graph(graph, repeats=1)


def test_every_operator_is_measured(profile: Profile) -> None:
    """Stages with weights have a forward and a backward; activations and weights take memory."""
    assert set(profile.stages) == {"encoder", "model"}
    for stage in profile.stages.values():
        load = Load(4, 40.0, 400.0)
        assert stage.forward.seconds(load) > 0
        assert stage.backward.seconds(load) > 0
        assert stage.kept_bytes.seconds(load) > 0
        assert stage.weights_bytes > 0
    assert profile.read.sample > 0
    assert {row["what"] for row in profile.measured} == {"forward", "backward"}


def test_a_profile_survives_its_file(profile: Profile, tmp_path: Path) -> None:
    """What is read is what was written."""
    path = tmp_path / "profile.parquet"
    profile.write(path)
    found = read_profile(path)
    assert found.stages == profile.stages
    assert (found.read, found.slowdown, found.data) == (
        profile.read,
        profile.slowdown,
        profile.data,
    )
    assert len(found.measured) == len(profile.measured)


def test_what_is_no_profile_is_refused(tmp_path: Path) -> None:
    """Any other file, with what was expected."""
    path = tmp_path / "profile.parquet"
    path.write_text("nothing")
    with pytest.raises(PlanError, match="is no profile"):
        read_profile(path)


def test_a_plan_for_this_machine_is_obeyed(profile: Profile, tmp_path: Path) -> None:
    """Cores are given to replicas, and the plan's file gives them to a graph."""
    graph = small_graph()
    plan = make_plan(make_setting(graph, "4xcpu", steps=4, profile=profile))
    plan.write(tmp_path / "plan.json")
    again = small_graph()
    apply_plan(read_plan(tmp_path / "plan.json"), again)
    for name, stage in plan.stages.items():
        assert again.stage(name).replicas == stage.replicas
    assert sum(stage.devices for stage in plan.stages.values()) <= 4


def test_a_plan_for_a_cluster_is_not_obeyed_here() -> None:
    """The local runtime refuses devices that it has not, with what to do."""
    graph = small_graph()
    plan = make_plan(make_setting(graph, "4xH100", steps=4))
    with pytest.raises(PlanError, match="the local runtime has this machine's cores alone"):
        apply_plan(plan, graph)


@pytest.mark.parametrize("devices", ["2xcpu", "2xH100"])
def test_cores_and_profiles_go_together(devices: str, profile: Profile) -> None:
    """A profile is of this machine, and this machine needs one."""
    given = None if devices == "2xcpu" else profile
    with pytest.raises(PlanError, match="give both"):
        make_setting(small_graph(), devices, steps=4, profile=given)


def test_lines_are_fitted_exactly_where_there_is_no_noise() -> None:
    """Every coefficient comes back; none is below 0."""
    draw = np.random.default_rng(0)
    loads = [Load(int(n), r, s) for n, r, s in draw.uniform(1, 100, (20, 3))]
    line = Line(0.5, 0.25, 0.0, 2.0)
    found, error = fit_line(loads, [line.seconds(load) for load in loads])
    assert found.coefficients == pytest.approx(line.coefficients, abs=1e-6)
    assert error < 1e-6


def test_samples_that_make_the_ratio_stable() -> None:
    """Equal samples are stable one by one; ones that alternate, two by two."""
    line = Line(row=1.0)

    def stable(*rows: int) -> int | None:
        lengths = [Lengths(tokens=10, targets=1, media={"image": r}) for r in rows]
        told = describe_data(lengths, encoders={"eye": ("image", line)}, objective=line)
        found: int | None = told["stable_samples"]["eye"]
        return found

    assert stable(*[4] * 32) == 1
    assert stable(*[2, 6] * 16) == 2
    assert stable(1, 9) is None


def test_packing_as_samples_come() -> None:
    """A pack ends where the next sample does not fit; too long a sample is alone."""
    assert fill_in_order([3, 4, 4, 9, 1], max_tokens=8) == [[0, 1], [2], [3], [4]]


def test_parts_are_left_out_of_a_graph() -> None:
    """Lock-step is a window of one, no allocator one worker each, no scheduler another packer."""
    graph = small_graph(replicas=3)
    leave_out(graph, ["pool", "allocator", "scheduler"])
    check(graph)
    assert graph.stage("encoder").window == 1
    assert graph.stage("encoder").replicas == 1
    assert "ArrivalPacker" in repr(graph.stage("packer").what)


def test_a_frozen_encoder_has_no_lock_step() -> None:
    """Nothing returns to it that it could wait for, and it is told so."""
    with pytest.raises(PlanError, match="is frozen"):
        leave_out(small_graph(freeze=True), ["pool"])


@pytest.mark.slow
def test_one_process_alone_is_not_slowed_down() -> None:
    """By definition."""
    assert measure_slowdown(cores=1, most=1) == (1.0,)


def test_profiles_are_of_a_graph(profile: Profile) -> None:
    """A stage that was not profiled is named, with those that were."""
    other = Profile(**{**vars(profile), "stages": {"other": next(iter(profile.stages.values()))}})
    assert isinstance(other.stages["other"], StageProfile)
    with pytest.raises(PlanError, match="Profile this graph"):
        make_plan(make_setting(small_graph(), "2xcpu", steps=4, profile=other))
