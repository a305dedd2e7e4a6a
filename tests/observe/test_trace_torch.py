"""Operators and kernels in the trace: whose they are, and when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import small_graph

from flowengine import launch
from flowengine.observe.run_files import RunFiles
from flowengine.observe.trace import make_trace
from flowengine.runtime.profiler import FOLDER

Event = dict[str, Any]


def trace_of(run_dir: Path) -> list[Event]:
    trace = json.loads(json.dumps(make_trace(RunFiles(run_dir)), allow_nan=False))
    found: list[Event] = trace["traceEvents"]
    return found


def tracks(events: list[Event]) -> dict[tuple[int, int], str]:
    """Names of threads by process and thread id."""
    named = [e for e in events if e["ph"] == "M" and e["name"] == "thread_name"]
    assert len(named) == len({(e["pid"], e["tid"]) for e in named})
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in named}


@pytest.mark.slow
def test_operators_of_chosen_steps(tmp_path: Path) -> None:
    """Every operator of a worker lies within a piece of its work, on a track of its stage, and the
    chosen step's work has operators from end to end."""
    graph = small_graph(steps=5, replicas=2, min_packs=2)
    launch.run(graph, run_dir=tmp_path, torch_profiler=[range(2, 3)])
    events = trace_of(tmp_path)
    names = tracks(events)
    for label in ("encoder[0]", "encoder[1]", "model"):
        mine = {place for place, name in names.items() if name.startswith(f"{label} thread")}
        (place,) = mine
        own = next(p for p, n in names.items() if n == (label if "[" in label else f"{label}[0]"))
        assert place[0] == own[0]
        operators = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == place]
        work = [
            e
            for e in events
            if e.get("cat") == "work" and (e["pid"], e["tid"]) == own and e["args"]["step"] == 2
        ]
        assert {"aten::mm", "aten::addmm"} & {operator["name"] for operator in operators}
        for operator in operators:
            assert any(covers(piece, operator) for piece in work), operator
        heavy = [piece for piece in work if piece["name"] in ("forward", "train", "backward")]
        assert heavy
        assert all(any(covers(piece, o) for o in operators) for piece in heavy)


def covers(piece: Event, operator: Event, slack_us: float = 200.0) -> bool:
    began, ended = piece["ts"] - slack_us, piece["ts"] + piece["dur"] + slack_us
    return bool(began <= operator["ts"] and operator["ts"] + operator["dur"] <= ended)


@pytest.mark.slow
def test_all_stages_in_one_process(tmp_path: Path) -> None:
    """Inline, the operators of all stages are on one track, and arrows keep their ids apart."""
    graph = small_graph(steps=4, staleness=1)
    launch.run(graph, runtime="inline", run_dir=tmp_path, torch_profiler=[range(1, 2), range(3, 9)])
    assert len(list((tmp_path / FOLDER).iterdir())) == 2
    events = trace_of(tmp_path)
    operators = {(e["pid"], e["tid"]) for e in events if e.get("cat") == "cpu_op"}
    assert [tracks(events)[place].split()[:2] for place in operators] == [["torch", "thread"]]
    begun = [(e["cat"], e["id"]) for e in events if e["ph"] == "s"]
    assert len(begun) == len(set(begun))


def test_kernels_and_streams(finished: Path, tmp_path: Path) -> None:
    """A GPU's kernels are on a track per stream, in the run's time, tied to what launched them."""
    for name in ("run.json", "metrics.jsonl"):
        (tmp_path / name).write_text((finished / name).read_text())
    on_cpu = {"pid": 77, "tid": 78, "cat": "cuda_runtime", "name": "cudaLaunchKernel"}
    on_gpu = {"pid": 0, "tid": 7, "cat": "kernel", "name": "gemm"}
    of_stream = {"args": {"stream": 7, "device": 0}}
    arrow = {"cat": "ac2g", "name": "ac2g", "id": 3}
    profile = {
        "flowengine": {"stages": ["encoder[1]"], "run_began_ns": 5_000_000_000},
        "baseTimeNanoseconds": 4_000_000_000,
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "x"}},
            {"ph": "X", "ts": 1_500_000.25, "dur": 3.5, **on_cpu},
            {"ph": "X", "ts": 1_500_010.0, "dur": 9.0, **on_gpu, **of_stream},
            {"ph": "s", "ts": 1_500_001.0, **on_cpu, **arrow},
            {"ph": "f", "ts": 1_500_010.0, "bp": "e", **on_gpu, **of_stream, **arrow},
            {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "x"},
        ],
    }
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "one.json").write_text(json.dumps(profile))
    events = trace_of(tmp_path)
    names = tracks(events)
    (kernel,) = (e for e in events if e.get("cat") == "kernel")
    (launch_,) = (e for e in events if e.get("cat") == "cuda_runtime" and e["ph"] == "X")
    assert names[kernel["pid"], kernel["tid"]] == "encoder[1] GPU 0 stream 7"
    assert names[launch_["pid"], launch_["tid"]] == "encoder[1] thread 78"
    assert (launch_["ts"], launch_["dur"], kernel["ts"]) == (500_000.25, 3.5, 500_010.0)
    (start,), (end,) = ([e for e in events if e["ph"] == phase] for phase in "sf")
    assert start["id"] == end["id"]
    assert (end["pid"], end["tid"]) == (kernel["pid"], kernel["tid"])
