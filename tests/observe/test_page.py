"""report.html: what is on it, that it needs nothing else, and that a browser shows it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowengine.observe import page as page_module
from flowengine.observe.compare import make_comparison_page
from flowengine.observe.page import make_page, write_page
from flowengine.observe.page_charts import draw_evaluations
from flowengine.observe.run_files import RunFiles

SECTIONS = (
    "Graph",
    "Where the time goes",
    "Three steps in detail",
    "The whole run",
    "Loss",
    "Evaluations and results",
    "Pool and channels",
    "Packs",
    "Staleness",
    "Dead letters",
    "Restarts and checkpoints",
    "What was run",
)
pytestmark = pytest.mark.slow
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


class Checker(HTMLParser):
    """Gathers what a page holds: headings, ids, and whatever would load something."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self._in_heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_heading = tag == "h2"
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            loads = name in ("src", "href", "xlink:href") and not (value or "").startswith("#")
            if (loads and value != "data:,") or tag == "script":
                self.loads.append(f"{tag} {name}={value}")

    def handle_data(self, data: str) -> None:
        if self._in_heading:
            self.headings.append(data)
            self._in_heading = False


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    return checker


def test_what_is_on_it(finished: Path) -> None:
    """The page has all sections, the verdict, and the command to repeat the run."""
    text = (finished / "report.html").read_text()
    assert tuple(checked(text).headings) == SECTIONS
    assert text.count('class="chart"') == 8
    assert re.search(r"is the bottleneck: it is busy \d+%|No stage stands out", text)
    assert "0 in all 6 steps" in text


def test_it_needs_nothing_else(finished: Path) -> None:
    """No script, nothing to load, and no id twice."""
    found = checked((finished / "report.html").read_text())
    assert found.loads == []
    assert len(found.ids) == len(set(found.ids)) > 100
    assert "@import" not in (finished / "report.html").read_text()


def test_every_colour_is_by_theme(finished: Path) -> None:
    """Outside the style sheet no chart has a colour of its own, so that dark is dark."""
    text = (finished / "report.html").read_text()
    body = text[text.index("<body") :]
    assert re.findall(r"(?:fill|stroke|color): ?(#[0-9a-f]{3,6})", body) == []
    assert "var(--busy)" in body


def test_a_run_that_failed(failed: Path) -> None:
    """A run without a step has its page, with the error on it."""
    text = (failed / "report.html").read_text()
    assert tuple(checked(text).headings) == SECTIONS
    assert "raise max_tokens=" in text
    assert "No training step was recorded." in text


def test_evaluations() -> None:
    """What evaluations found is a table, its numbers between 0 and 1 a chart."""
    found = [
        {"step": step, "results": {"score": {"score": {"n": 8, "all": step / 30, "by": "x"}}}}
        for step in (10, 20, 30)
    ]
    drawn = draw_evaluations(found)
    assert "<th>score n</th><th>score all</th>" in drawn
    assert '<td class="n">20</td><td class="n">8</td><td class="n">0.6667</td>' in drawn
    assert drawn.count('class="chart"') == 1
    assert 'class="chart"' not in draw_evaluations(found[:1])


def test_restarts(finished: Path, tmp_path: Path) -> None:
    """A run that began again says when and why, and counts the packs of a step once."""
    shutil.copytree(finished, tmp_path / "run")
    steps = RunFiles(finished).steps
    lines = (finished / "metrics.jsonl").read_text().splitlines(keepends=True)
    again = {"event": "restarted", "step": 4, "restarts": 1, "reason": "killed <it>"}
    again["wall_s"] = (steps[4]["wall_s"] + steps[5]["wall_s"]) / 2
    (tmp_path / "run" / "metrics.jsonl").write_text(
        "".join([*lines, json.dumps(again) + "\n", *lines[-4:]])
    )
    packs = RunFiles(finished).packs
    pq.write_table(pa.concat_tables([packs, packs]), tmp_path / "run" / "packs.parquet")
    report = json.loads((finished / "report.json").read_text())
    told = json.dumps({**report, "restarts": [again]})
    (tmp_path / "run" / "report.json").write_text(told)
    files = RunFiles(tmp_path / "run")
    assert files.packs.equals(packs)
    assert (files.attempt(0.0), files.attempt(1e9)) == (0, 1)
    text = make_page(files)
    assert "killed &lt;it&gt;" in text
    assert ">restart</text>" in text


def test_text_is_escaped(finished: Path, tmp_path: Path) -> None:
    """What users named is shown, not obeyed."""
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    path.write_text(path.read_text().replace('"graph": "small"', '"graph": "<script>x</script>"'))
    text = make_page(RunFiles(tmp_path / "run"))
    assert "&lt;script&gt;" in text
    assert checked(text).loads == []


def test_a_page_that_cannot_be_drawn(
    failed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error while drawing is on the page, and nowhere else."""
    shutil.copytree(failed, tmp_path / "run")

    def fail(files: RunFiles) -> str:
        raise ZeroDivisionError(f"no {files.run_dir.name}")

    monkeypatch.setattr(page_module, "make_page", fail)
    assert "ZeroDivisionError: no run" in write_page(tmp_path / "run").read_text()


def test_comparison(finished: Path, failed: Path) -> None:
    """Two runs on one page, also one without a step; no id twice."""
    text = make_comparison_page(RunFiles(finished), RunFiles(failed))
    found = checked(text)
    assert found.loads == []
    assert len(found.ids) == len(set(found.ids))
    assert "finished and failed" in text


@pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium")
@pytest.mark.parametrize("dark", [False, True])
def test_in_a_browser(finished: Path, tmp_path: Path, dark: bool) -> None:
    """A browser draws the page without an error on its console; the dark one is dark."""
    assert BROWSER is not None
    picture = tmp_path / "page.png"
    done = subprocess.run(
        [
            BROWSER,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--window-size=1200,1000",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr",
            *(["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []),
            f"--screenshot={picture}",
            (finished / "report.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    from matplotlib.image import imread

    pixels = imread(picture)[:, :, :3]
    paper = pixels[-5:, :5].mean()
    assert (paper < 0.2) if dark else (paper > 0.95)
    assert pixels.std() > 0.02
