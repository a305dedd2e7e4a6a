"""Pieces of a page that needs no network and no script: the document itself, and its tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from flowengine.observe.palette import style_sheet

_NUMBER = re.compile(r"-?\d")
_STYLE = """
body{background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif;margin:0}
main{max-width:1160px;margin:0 auto;padding:24px 20px 60px}
h1{font-size:24px;margin:0}h2{font-size:17px;margin:36px 0 6px}
p{margin:6px 0}.dim,figcaption,th{color:var(--dim)}
.chart{max-width:100%;height:auto;display:block}
.chart text{font-family:system-ui,sans-serif!important}
.tiles{display:flex;flex-wrap:wrap;gap:10px;margin:18px 0}
.tiles div{border:1px solid var(--grid);border-radius:8px;padding:8px 14px;min-width:96px}
.tiles b{display:block;font-size:19px}.tiles span{color:var(--dim);font-size:12.5px}
.verdict{border-left:4px solid var(--alarm);padding:8px 14px;background:var(--heat0);margin:16px 0}
.failed{border-left-color:var(--alarm);white-space:pre-wrap;overflow-x:auto;font-family:monospace}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13.5px;margin:8px 0}
td,th{text-align:left;padding:3px 18px 3px 0;border-bottom:1px solid var(--grid);vertical-align:top}
th{font-weight:500}td.n{text-align:right;font-variant-numeric:tabular-nums}
pre{background:var(--heat0);padding:10px 12px;border-radius:6px;overflow-x:auto;font-size:13px}
.pair{display:flex;flex-wrap:wrap}.pair>*{flex:1 1 420px;min-width:0}
"""


def html_page(title: str, sections: Iterable[str]) -> str:
    """A whole document with the project's style."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{style_sheet()}{_STYLE}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def html_table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: bool = True
) -> str:
    """A table; with `numbers`, cells that begin with a number stand right."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    filled = ("".join(_cell(str(cell), numbers=numbers) for cell in row) for row in rows)
    lines = "".join(f"<tr>{cells}</tr>" for cells in filled)
    top = f"<thead><tr>{cells}</tr></thead>" if head else ""
    return f'<div class="scroll"><table>{top}<tbody>{lines}</tbody></table></div>'


def _cell(text: str, *, numbers: bool) -> str:
    kind = ' class="n"' if numbers and _NUMBER.match(text) else ""
    return f"<td{kind}>{escape(text)}</td>"
