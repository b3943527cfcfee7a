"""The report as one HTML page that needs nothing else: no script, no network."""

from __future__ import annotations

import html

import pandas as pd
from matplotlib.figure import Figure

from analysis.figures import FIGURES
from analysis.figures.style import svg

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 1.5rem auto; padding: 0 1rem; color: #1a1a1a; }
h1 { font-size: 1.5rem; margin: .2rem 0; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.answer { font-size: 1.02rem; margin: .6rem 0; padding-left: 1.2rem; } .answer li:first-child { font-weight: 600; }
.note { color: #555; font-size: .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
td { font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0; } figcaption { color: #555; font-size: .9rem; }
svg { width: 100%; height: auto; } pre { font-size: 12px; overflow-x: auto; }
.problems { border-left: 4px solid #D55E00; padding-left: 1rem; }
"""


def page(
    title: str,
    answer: list[str],
    problems: list[str],
    figures: dict[str, Figure | str],
    tables: dict[str, tuple[str, pd.DataFrame]],
    settings: str,
    provenance: str,
) -> str:
    """The page. title: sweep and question. figures: by name, the first is on the first screen. tables: title -> (how to read it,
    table)."""
    first, *rest = figures
    flag = f' <a href="#problems">{len(problems)} things to know before reading on.</a>' if problems else ""
    told = "".join(f"<li>{html.escape(problem)}</li>" for problem in problems)
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f'<ul class="answer">{"".join(f"<li>{html.escape(sentence)}</li>" for sentence in answer)}</ul>',
        f'<p class="note">{html.escape(provenance)}{flag}</p>',
        _figure(first, figures[first]),
        f'<h2 id="problems">What failed, and what is uneven</h2><ul class="problems">{told}</ul>' if problems else "",
        *(_figure(name, figures[name]) for name in rest),
        *(_table(title, *entry) for title, entry in tables.items()),
        f"<h2>Settings that all runs share</h2><pre>{html.escape(settings)}</pre>",
    ]
    head = f'<meta charset="utf-8"><title>Faultline: {html.escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{chr(10).join(body)}\n</body></html>\n'


def _figure(name: str, drawn: Figure | str) -> str:
    output = FIGURES[name]
    if isinstance(drawn, str):
        return f'<h2>{html.escape(output.title)}</h2><p class="note">Not drawn: {html.escape(drawn)}</p>'
    caption = f"<figcaption>{html.escape(output.reading)}</figcaption>"
    return f'<h2>{html.escape(output.title)}</h2><figure id="{name}">{svg(drawn)}{caption}</figure>'


def _table(title: str, reading: str, table: pd.DataFrame) -> str:
    if table.empty:
        return f'<h2>{html.escape(title)}</h2><p class="note">Nothing to list.</p>'
    shown = table.to_html(index=False, border=0, na_rep="–", float_format=lambda value: f"{value:.3g}")
    return f'<h2>{html.escape(title)}</h2><p class="note">{html.escape(reading)}</p><div class="scroll">{shown}</div>'
