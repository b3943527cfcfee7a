"""The one page and the one printer: what comes from a run is escaped, numbers look alike in HTML, Markdown and the terminal."""

import pandas as pd
from matplotlib.figure import Figure

from analysis import frames
from analysis.page import Section, page

HOSTILE = "<script>alert(1)</script> & | [bold]x[/bold]"
TABLE = pd.DataFrame({"ess_sequence_min": [0.123456, None], "arm": [HOSTILE, "fp8"], "runs": [3, 4]})


def test_everything_but_a_figure_is_escaped():
    sections = [
        Section(HOSTILE, HOSTILE, table=TABLE, items=[HOSTILE], text=HOSTILE, anchor=HOSTILE, warning=True),
        Section("figure", figure=Figure()),
        Section("empty", table=TABLE[:0]),
    ]
    text = page(HOSTILE, [HOSTILE], sections, HOSTILE, ("there", HOSTILE))
    assert "<script" not in text and text.count("&lt;script&gt;") == 2 + 1 + 2 + 6  # title twice, answer, note and link, section
    assert text.count("<svg") == 1 and "Nothing to list." in text and "<th>lowest sequence ESS</th>" in text


def test_a_table_reads_the_same_everywhere(capsys):
    """Three significant digits, – for a missing value, the label of the column."""
    html = page("t", [], [Section("s", table=TABLE)])
    assert "<td>0.123</td>" in html and "<td>–</td>" in html
    head, _, first, second = frames.markdown(TABLE).splitlines()
    assert head.split("|")[1].strip() == "lowest sequence ESS" and r"& \| [bold]" in first
    assert [cell.strip() for cell in second.strip("|").split("|")] == ["–", "fp8", "4"]
    frames.show("[title]", TABLE)
    told = capsys.readouterr().out
    assert "[title]" in told and "[bold]x[/bold]" in told and "lowest sequence ESS" in told and "0.123" in told
    assert frames.markdown(TABLE[:0]) == "Nothing to list."
