"""The one page and the one printer: what comes from a run is escaped, numbers look alike in HTML, Markdown and the terminal."""

import html
import json
import re

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import frames
from analysis.figures.style import draw, subplots
from analysis.page import Section, page, unbroken

HOSTILE = "<script>alert(1)</script> & | [bold]x[/bold]"
TABLE = pd.DataFrame({"ess_sequence_min": [0.123456, None], "arm": [HOSTILE, "fp8"], "runs": [3, 4]})


def test_everything_but_a_figure_is_escaped():
    sections = [
        Section(HOSTILE, HOSTILE, table=TABLE, items=[HOSTILE], text=HOSTILE, anchor=HOSTILE, warning=True),
        Section("figure", figure=Figure()),
        Section("empty", table=TABLE[:0]),
    ]
    text = page(HOSTILE, [HOSTILE], sections, HOSTILE, ("there", HOSTILE))
    content, data, script = re.split(r"<script[^>]*>", text)
    assert data.startswith("{}</script>") and script.rstrip().endswith("</script>\n</body></html>") and "<script" not in script
    # title twice, answer, note and link, section, and its name and title in the contents
    assert content.count("&lt;script&gt;") == 2 + 1 + 2 + 6 + 2
    assert text.count("<svg") == 1 and "Nothing to list." in text and "<th>lowest sequence ESS</th>" in text


def test_a_number_does_not_break_at_its_exponent():
    """A browser breaks lines after a hyphen: between two numbers, not within one. All is escaped before."""
    assert unbroken("4.8e-05 / 1e-2") == '<span class="number">4.8e-05</span> / <span class="number">1e-2</span>'
    assert unbroken("sequence-mask <b>1.5e-3") == 'sequence-mask &lt;b&gt;<span class="number">1.5e-3</span>'
    assert unbroken("the-end, 0.5") == "the-end, 0.5"


def test_a_table_reads_the_same_everywhere(capsys):
    """Three significant digits, – for a missing value, the label of the column."""
    html = page("t", ["a"], [Section("s", table=TABLE)])
    assert "<td>0.123</td>" in html and "<td>–</td>" in html
    head, _, first, second = frames.markdown(TABLE).splitlines()
    assert head.split("|")[1].strip() == "lowest sequence ESS" and r"& \| [bold]" in first
    assert "<script" not in first and "&lt;script>alert(1)&lt;/script>" in first  # Markdown lets HTML through
    assert frames.plain("p < 0.05, <!-- <b> &lt;") == "p < 0.05, &lt;!-- &lt;b> &lt;"
    assert [cell.strip() for cell in second.strip("|").split("|")] == ["–", "fp8", "4"]
    frames.show("[title]", TABLE)
    told = capsys.readouterr().out
    assert "[title]" in told and "[bold]x[/bold]" in told and "lowest sequence ESS" in told and "0.123" in told
    assert frames.markdown(TABLE[:0]) == "Nothing to list."
    lines = ["| a   | b c   |", "|:----|:------|", r"| 1   | x\|y  |"]
    assert frames.pipes(["a", "b c"], [["1", "x|y"]]) == "\n".join(lines)


def test_what_a_run_is_called_stays_data():
    """The script's data hold run ids, arms and settings of a stranger's choice: they cannot end their element."""
    run = "</script><script>alert(1)</script>"
    figure, ((axis,),) = subplots(1, 1, 3.0)
    axis.plot([0, 10], [0.25, 0.75], gid=run)
    text = page("t", ["a"], [Section("Curves", figure=figure)], runs={run: {"arm": run, "seed": 0, "href": "", "settings": {}}})
    assert text.count("<script") == 2 and "alert(1)<" not in text
    curves = json.loads(html.unescape(re.search(r'data-curves="([^"]*)"', text)[1]))
    (curve,) = curves["curves"]
    assert (curve["id"], curve["run"], curve["x"], curve["y"]) == ("curves-curve-0", run, [0, 10], [0.25, 0.75])
    assert f'id="{curve["id"]}"' in text


def test_a_panel_is_where_the_curve_is_drawn():
    """The path's own points in the SVG are where the panel puts the data: matplotlib's numbers against ours."""
    figure, ((left, right),) = subplots(1, 2, 3.0)
    left.plot([0, 5, 10], [0.2, 0.9, 0.4], gid="a")
    right.plot([1, 2, 3], [1e-3, 1e-1, 10.0], gid="b")
    right.set_yscale("log")
    drawn = draw(figure, "f")
    for curve in drawn.curves["curves"]:
        panel = drawn.curves["panels"][curve["panel"]]
        path = re.search(rf'<g id="{curve["id"]}">\s*<path d="([^"]*)"', drawn.svg)[1]
        points = np.array(re.findall(r"[ML] (\S+) (\S+)", path), float)
        (x, y), (width, height) = panel["box"][:2], panel["box"][2:]
        along = [(np.array(curve["x"]) - panel["x"][0]) / (panel["x"][1] - panel["x"][0])]
        low, most, logarithmic = panel["y"]
        scale = np.log if logarithmic else np.asarray
        along.append((scale(curve["y"]) - scale(low)) / (scale(most) - scale(low)))
        np.testing.assert_allclose(points, np.stack([x + width * along[0], y + height * (1 - along[1])], 1), atol=0.05)
