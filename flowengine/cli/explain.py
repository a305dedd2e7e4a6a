"""flowengine explain: why a run does not go on, or what ended it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import click

FRESH_S = 10.0


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def explain(run_dir: Path, as_json: bool) -> None:
    """Say who waits for whom in a run, the root cause first.

    Of a run that goes on, with the stacks of the workers that are the root cause; of one that has
    ended, with how it ended.
    """
    found = _explain(run_dir)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(f"{run_dir}: {found['state']}")
    click.echo(found["text"])
    for label, stack in found["stacks"].items():
        click.echo(f"\nstacks of {label}:\n{stack.rstrip()}")


def _explain(run_dir: Path) -> dict[str, Any]:
    from flowengine.observe.status_file import read_status
    from flowengine.runtime.stall import Dependencies, describe_stall, look_closer, root_causes

    report = run_dir / "report.json"
    if report.is_file():
        told = json.loads(report.read_text("utf-8"))
        text = told["error"] or f"{told['steps']} steps trained"
        return {"state": told["status"], "text": text, "causes": [], "stacks": {}}
    last = read_status(run_dir)
    if last is None:
        raise click.ClickException(
            f"{run_dir}: has no status.json and no report.json; expected the directory of a run"
        )
    status, record = last
    known = Dependencies(**json.loads((run_dir / "run.json").read_text("utf-8"))["dependencies"])
    lives = _lives(record)
    if lives:
        status = look_closer(status, known)
    causes = root_causes(status, known)
    return {
        "state": "running" if lives else "dead: its supervisor is gone, and left no report",
        "text": describe_stall(status, known),
        "causes": [f"{cause.stage}[{cause.replica}]" for cause in causes],
        "stacks": _stacks(run_dir, causes, status) if lives else {},
    }


def _lives(record: dict[str, Any]) -> bool:
    if time.time() - record["written_s"] > FRESH_S:
        return False
    try:
        os.kill(record["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _stacks(run_dir: Path, causes: Any, status: Any) -> dict[str, str]:
    from flowengine.runtime.stacks import take_stacks

    replicas = [stage.stage for stage in status.stages]
    pids = {
        f"{s.stage}[{s.replica}]" if replicas.count(s.stage) > 1 else s.stage: s.pid
        for s in causes
        if s.pid
    }
    return take_stacks(run_dir, pids)
