"""The report: that its page opens in a real browser, what it does with sweeps that are uneven or empty, its files."""

import html
import json
import re
import subprocess
import sys

import pandas as pd
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from analysis.colours import PAPER
from analysis.figures import FIGURES
from analysis.load import load
from analysis.report import BEGIN, END, insert, report
from analysis.report import _markdown as markdown_of
from harness.errors import UserError
from tests.analysis.synthetic import FP8, FP32, write
from tests.waiting import PATIENCE


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_last_rewards_come_first_and_a_map_has_more_than_one_column(made, tmp_path):
    """The first screen is the last reward of every run, of ten arms as of two. Survival is drawn from ten collapses on. Two arms
    of one loss have no map: it would repeat the last rewards."""
    page = made[1].read_text()
    assert "which loss and correction survive, against the control?" in page
    assert page.index('id="ends"') < page.index('id="arms"') < page.index('id="reward"')
    for seeds, figures in ((range(2), ["ends", "reward"]), (range(2, 10), ["ends", "survival", "reward"])):
        for seed in seeds:
            write(tmp_path, FP32, seed=seed)
            write(tmp_path, FP8, seed=seed, collapse=50)
        page = report(tmp_path).read_text()
        assert [
            name for name in re.findall(r'<section id="(.*?)"', page) if name in ("survival", "heatmaps", *figures)
        ] == figures


def test_the_page_needs_nothing_else_and_is_small(made):
    page = made[1].read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", page.replace("xlink:href", ""))
    assert page.count("<script") == 2  # the runs, and what the page does with them
    assert "http" not in re.sub(r"http://www\.w3\.org/\S+|http://purl\.org/\S+|http://creativecommons\.org/\S+", "", page)
    assert len(page) < 1_500_000
    # no noise, search, bounds, dumps, learning rates or experts to compare, and six collapses
    assert page.count("<figure") == len(FIGURES) - 12
    assert "Edge of stability (the sweep has one learning rate)" in page


def test_markdown_holds_no_html_of_a_run(tmp_path):
    """The name of a sweep's folder and a caveat's error are a stranger's."""
    sweep = tmp_path / "<img src=x onerror=alert(1)>"
    write(sweep, FP32)
    write(sweep, FP8, until=3, state="failed", error="<script>alert(1)</script>")
    text = markdown_of(results := load(sweep), [f"{results.name} < 1"], [])
    assert "&lt;img src=x" in text and "> < 1" in text and not re.search(r"<[a-z/!]", text)


def browser(page, shot, height=900):
    """A screenshot by Debian's chromium, and what its console said."""
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--window-size=1280,{height}",
        "--enable-logging=stderr",
    ]
    where = [f"--user-data-dir={shot.parent / 'profile'}", f"--screenshot={shot}", f"file://{page}"]
    done = subprocess.run(["chromium", *options, *where], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return Image.open(shot).convert("L"), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.chromium
def test_a_real_browser_shows_words_and_a_figure_on_the_first_screen(made, tmp_path):
    image, console = browser(made[1], tmp_path / "first.png")
    assert image.size == (1280, 900) and console == []
    dark = pd.Series([sum(v < 128 for v in image.crop((0, y, 1280, y + 50)).tobytes()) for y in range(0, 900, 50)])
    assert dark[:6].min() > 100  # lines of text
    assert dark[9:].sum() > 3000  # axes and curves below them


@pytest.mark.chromium
def test_a_real_browser_lays_out_every_figure_and_table(made, tmp_path):
    """The document as the browser has it: each figure has a size, and nothing is wider than the window."""
    copy = tmp_path / "measured.html"
    script = """<script>onload = () => { const r = e => e.getBoundingClientRect();
      const svg = [...document.querySelectorAll("figure > .scroll > svg")].map(e => [r(e).width, r(e).height]);
      document.title = JSON.stringify({ svg,
      wide: document.documentElement.scrollWidth, tables: document.querySelectorAll("table").length }) }</script>"""
    copy.write_text(made[1].read_text().replace("</body>", f"{script}</body>"))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,900", "--dump-dom"]
    done = subprocess.run(
        [*command, f"--user-data-dir={tmp_path / 'p'}", f"file://{copy}"], capture_output=True, text=True, timeout=PATIENCE
    )

    found = json.loads(html.unescape(re.search(r"<title>(.*?)</title>", done.stdout)[1]))
    assert len(found["svg"]) == len(FIGURES) - 12 and all(w > 800 and h > 100 for w, h in found["svg"])
    assert found["wide"] <= 1280 and found["tables"] == 8


CLICKS = """<script>onload = () => {
  const said = {}, rows = t => [...t.tBodies[0].rows].filter(r => !r.hidden).map(r => r.cells[0].textContent);
  const table = document.querySelector("#arms table"), head = table.tHead.rows[0].cells[0].firstChild;
  head.click(); said.up = rows(table); head.click(); said.down = rows(table);
  const filter = document.querySelector("#arms .filter");
  filter.value = "fp8 mask"; filter.oninput(); said.filtered = rows(table); filter.value = ""; filter.oninput();
  const figure = document.querySelector("#reward figure"), svg = figure.querySelector(".scroll > svg");
  const {curves, panels} = JSON.parse(figure.dataset.curves), curve = curves[curves.length - 1], panel = panels[curve.panel];
  const at = place(panel, curve.x[3], curve.y[3]), there = new DOMPoint(...at).matrixTransform(svg.getScreenCTM());
  const event = (kind, more) => svg.dispatchEvent(new MouseEvent(kind, {clientX: there.x, clientY: there.y, ...more}));
  event("mousemove"); said.hover = figure.querySelector(".hover").textContent;
  event("click"); said.chosen = document.querySelectorAll("g.chosen").length;
  said.marked = [...document.querySelectorAll("#arms tr.chosen")].map(r => r.cells[0].textContent);
  said.link = document.querySelector(".compared a").getAttribute("href");
  choose([curves[0].run], true); said.difference = document.querySelector(".compared pre").textContent;
  choose([]); said.cleared = document.querySelectorAll(".chosen, .faded").length;
  const button = figure.querySelector(".legend button"); button.click();
  said.hidden = document.querySelectorAll("g.hidden").length; said.arm = button.textContent; button.click();
  said.shown = document.querySelectorAll("g.hidden").length;
  const inside = e => { const b = e.getBoundingClientRect(); return b.left >= -1 && b.right <= innerWidth + 1; };
  said.wide = document.documentElement.scrollWidth; said.cut = [...document.querySelectorAll("h1, h2, nav, figure, p")]
    .filter(e => !inside(e)).map(e => e.outerHTML.slice(0, 80));
  document.title = JSON.stringify(said);
};</script>"""


@pytest.mark.chromium
@pytest.mark.parametrize("width", [500, 1000, 1600])
def test_a_real_browser_sorts_filters_hovers_and_chooses(made, tmp_path, width):
    """Real clicks at three widths: what is said of a point is what the run recorded there."""
    copy = tmp_path / "clicked.html"
    copy.write_text(made[1].read_text().replace("</body>", f"{CLICKS}</body>"))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--dump-dom"]
    done = subprocess.run(
        [*command, f"--user-data-dir={tmp_path / 'p'}", f"file://{copy}"], capture_output=True, text=True, timeout=PATIENCE
    )
    said = json.loads(html.unescape(re.search(r"<title>(.*?)</title>", done.stdout)[1]))
    results = load(made[0])
    natural = sorted(results.arms, key=lambda arm: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", arm)])
    assert said["up"] == natural and said["down"] == natural[::-1]  # fp8 before fp32
    assert said["filtered"] == [arm for arm in natural[::-1] if "fp8" in arm and "mask" in arm]
    arm, seed, step, value, run = re.fullmatch(r"(.*), seed (\d+)\nstep (\d+): (\S+)\nrun (.*)", said["hover"]).groups()
    rows = results.steps[(results.steps.run == run) & (results.steps.step == int(step))]
    assert rows["eval/reward"].item() == pytest.approx(float(value), abs=5e-4)
    assert results.runs.loc[run, ["arm", "seed"]].tolist() == [arm, int(seed)]
    assert said["chosen"] >= 1 and said["marked"] == [arm] and said["link"] == f"./{run}/"
    assert "→" in said["difference"] and said["cleared"] == 0
    seeds = (results.runs.arm == said["arm"]).sum()
    assert said["hidden"] == 2 * seeds and said["shown"] == 0  # the control also stands behind the panel of corrections
    assert said["wide"] <= width and said["cut"] == []


LAID_OUT = """<script>onload = () => {
  // The corners of a text as it is turned; two quads overlap unless a side of one parts them by a pixel.
  const corners = node => { const b = node.getBBox(), m = node.getScreenCTM();
    return [[b.x, b.y], [b.x + b.width, b.y], [b.x + b.width, b.y + b.height], [b.x, b.y + b.height]]
      .map(([x, y]) => { const p = new DOMPoint(x, y).matrixTransform(m); return [p.x, p.y]; }); };
  const parted = (a, b) => [a, b].some(quad => [0, 1].some(i => {
    const [x, y] = [quad[i + 1][0] - quad[i][0], quad[i + 1][1] - quad[i][1]], size = Math.hypot(x, y) || 1;
    const along = q => q.map(p => (p[0] * x + p[1] * y) / size);
    return Math.max(...along(a)) < Math.min(...along(b)) + 1.5 || Math.max(...along(b)) < Math.min(...along(a)) + 1.5; }));
  const said = { overlaps: [], cut: [], pale: [], least: 99, wide: document.documentElement.scrollWidth, width: innerWidth };
  // Red, green, blue and opacity of a CSS colour, and the contrast of two opaque colours (WCAG 2.1).
  const parts = colour => { const [r, g, b, a = 1] = colour.match(/[\d.]+/g).map(Number); return [r, g, b, a]; };
  const over = ([r, g, b, a], below) => [r, g, b].map((value, i) => a * value + (1 - a) * below[i]);
  const luminance = rgb => rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (one, other) => { const [a, b] = [luminance(one), luminance(other)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05); };
  const paper = over(parts(getComputedStyle(document.body).backgroundColor), [255, 255, 255]);
  said.paper = paper;
  const backed = node => { const own = node.closest && parts(getComputedStyle(node).backgroundColor);
    return !node.parentElement || own[3] === 1 ? (own[3] === 1 ? own.slice(0, 3) : paper) : backed(node.parentElement); };
  const judge = (colour, behind, least, name) => { const found = contrast(over(parts(colour), behind), behind);
    if (found < least) said.pale.push(`${name}: ${found.toFixed(2)}`); };
  const words = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const node = words.currentNode.parentElement;
    if (words.currentNode.textContent.trim() && !node.closest("svg, script"))
      judge(getComputedStyle(node).color, backed(node), 4.5, words.currentNode.textContent.slice(0, 40));
  }
  for (const curve of document.querySelectorAll("g[id*='-curve-'] path")) {
    const style = getComputedStyle(curve);
    if (style.strokeOpacity === "1") judge(style.stroke, paper, 3, curve.parentNode.id);
  }
  for (const svg of document.querySelectorAll("figure > .scroll > svg")) {
    const texts = [...svg.querySelectorAll("text")].map(node => ({ node, quad: corners(node) })), b = svg.getBoundingClientRect();
    const name = svg.closest("section").id;
    const filled = [...svg.querySelectorAll("path, use")].filter(shape => getComputedStyle(shape).fill !== "none")
      .map(shape => ({ box: shape.getBoundingClientRect(), style: getComputedStyle(shape) }));
    texts.forEach(({ node, quad }, i) => {
      const box = node.getBoundingClientRect(), [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
      const behind = filled.filter(({ box }) => box.left < x && x < box.right && box.top < y && y < box.bottom).reduce((below,
        { style }) => over([...parts(style.fill).slice(0, 3), style.fillOpacity * style.opacity], below), paper);
      judge(getComputedStyle(node).fill, behind, 4.5, `${name}: ${node.textContent}`);
      const scale = b.width / svg.viewBox.baseVal.width;
      said.least = Math.min(said.least, parseFloat(getComputedStyle(node).fontSize) * scale);
      if (quad.some(([x, y]) => x < b.left - 1 || x > b.right + 1 || y < b.top - 1 || y > b.bottom + 1))
        said.cut.push(`${name}: ${node.textContent}`);
      for (const other of texts.slice(i + 1))
        if (!parted(quad, other.quad)) said.overlaps.push(`${name}: ${node.textContent} / ${other.node.textContent}`);
    });
  }
  for (const node of document.querySelectorAll("h1, h2, p, li, button, summary, .legend"))
    if (node.clientWidth && (node.scrollWidth > node.clientWidth + 1 || node.scrollHeight > node.clientHeight + 1) &&
        getComputedStyle(node).overflow !== "visible") said.cut.push(node.outerHTML.slice(0, 80));
  for (const node of document.querySelectorAll("h1, h2, figure, p, .legend button")) {
    const box = node.getBoundingClientRect();
    if (box.left < -1 || box.right > innerWidth + 1) said.cut.push(node.outerHTML.slice(0, 80));
  }
  const boxes = [...document.querySelectorAll(".scroll")].filter(box => box.clientWidth);
  said.hints = boxes.every(box => ["more", "wide"].every(name =>
    box.classList.contains(name) === box.scrollWidth > box.clientWidth + 1));
  boxes.forEach(box => { box.scrollLeft = box.scrollWidth; box.onscroll(); });
  said.ends = !document.querySelector(".more");
  said.title = document.querySelector("h1").getBoundingClientRect().top;
  parent.postMessage(JSON.stringify(said), "*");
};</script>"""
FRAME = """<iframe src="{page}" width="{width}" height="900" style="border: 0"></iframe>
<script>onmessage = event => {{ document.title = event.data; }};</script>"""


def legible(page, folder, width, scheme):
    """Assert that no text of the page overlaps another, is cut, or is too pale on its background, which is that of the scheme.

    The page lies in a browser's frame, since windows are never narrower than 500. Text of a figure has at least 9 px: a narrow
    window scrolls the figure instead, and says so. The title stands below one line of contents.
    """
    (folder / "page.html").write_text(page.read_text().replace("</body>", f"{LAID_OUT}</body>"))
    (folder / "frame.html").write_text(FRAME.format(page="page.html", width=width))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000", "--dump-dom"]
    command += [f"--blink-settings=preferredColorScheme={['dark', 'light'].index(scheme)}"]
    command += ["--virtual-time-budget=5000", f"--user-data-dir={folder / 'profile'}", f"file://{folder / 'frame.html'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    said = json.loads(html.unescape(re.search(r"<title>(.*?)</title>", done.stdout)[1]))
    assert to_hex([part / 255 for part in said["paper"]]) == PAPER[scheme]
    assert said["overlaps"] == [] and said["cut"] == [] and said["pale"] == [] and said["hints"] and said["ends"]
    assert said["width"] == width and said["wide"] <= width and said["least"] >= 9 and said["title"] < 100


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """Twelve arms with long names, of which some never learn, one has not ended, and thirteen doses of noise."""
    arms, doses = tmp_path_factory.mktemp("arms"), tmp_path_factory.mktemp("doses")
    write(arms, FP32)
    for precision in ("bf16", "fp8_tensor"):
        own = f"rollout/precision={precision}"
        write(arms, own, collapse=60 if precision == "fp8_tensor" else None)
        for bound in (2, 4, 8):
            write(arms, own, "correction=token_truncate", f"correction.weight.upper={bound}", learns=bound < 8)
        write(arms, own, "correction=verl/decoupled_geo_rs", state="running", until=50)
    write(arms, FP8, "rollout.staleness=2", "correction=sequence_truncate", "actor.lr=0.00025")
    write(doses, FP32, steps=30)
    for noise in range(1, 13):
        lasting = f"rollout.engine.noise_persistence={noise % 2}"
        write(doses, FP32, f"rollout.engine.noise={noise / 20:g}", lasting, steps=30)
    return report(arms), report(doses)


@pytest.mark.chromium
@pytest.mark.parametrize("width", [420, 800, 1280])
@pytest.mark.parametrize("scheme", list(PAPER))
@pytest.mark.parametrize("sweep", [0, 1])
def test_a_crowded_page_is_legible(crowded, tmp_path, sweep, width, scheme):
    legible(crowded[sweep], tmp_path, width, scheme)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_an_uneven_sweep_is_told_of_and_not_averaged_away(tmp_path):
    for seed in (0, 1):
        write(tmp_path, FP32, seed=seed)
    write(tmp_path, FP8, seed=0, drop=("eval/stderr", "mismatch/ess_sequence"), commit="b" * 40)
    write(tmp_path, FP8, seed=1, until=30, state="failed", error="disk full <&>")
    (write(tmp_path, FP8, seed=2).path / "config.json").write_text("{")
    page = report(tmp_path).read_text()
    assert "fp8_tensor ppo seed 1: failed at step 29; the steps before count. disk full &lt;&amp;&gt;" in page
    assert "did not record" in page and "2 versions of the code" in page and "config.json: unreadable" in page
    table = load(tmp_path).outcomes.set_index("arm").loc["fp8_tensor ppo"]
    assert (table.runs, table.unfinished, table.collapsed) == (2, 1, 0)


@pytest.mark.usefixtures("undrawn")
def test_runs_that_recorded_nothing_yet(tmp_path):
    write(tmp_path, FP32, until=0, state="running")
    assert "running at step 0" in report(tmp_path).read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_control_alone_is_asked_where_it_is_stable(tmp_path):
    """Two rates x two numbers of mini-batches: of (1e-3, 4) both seeds collapse. Nothing is pooled over the mini-batches."""
    for rate in ("1e-4", "1e-3"):
        for parts in (1, 4):
            for seed in (0, 1):
                at = 20 if rate == "1e-3" and parts == 4 else None
                write(tmp_path, FP32, f"actor.lr={rate}", f"actor.num_minibatches={parts}", seed=seed, collapse=at)
    sweep = load(tmp_path)
    page = report(tmp_path).read_text()
    assert "where is the control stable?" in page and 'id="frontier"' in page and 'id="survival"' not in page  # two collapses
    assert (
        "All runs are controls: 4 settings with ended runs, 2 seeds each. A held-out reward of 0.95 was reached by every seed "
        "in 3, by some in 0, by none in 1. At least one seed collapsed in 1." in page
    )
    cells = [text.get_text() for text in FIGURES["frontier"].draw(sweep).axes[0].texts]
    assert sorted(cells) == ["0/2", "0/2", "0/2", "2/2"]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_an_8_bit_cache_is_a_source_of_mismatch_of_its_own(tmp_path):
    """Two seeds each: no sentence pools runs with a cache of 8 bits and runs without one."""
    for cache in ("compute", "fp8_e4m3"):
        for seed in (0, 1):
            write(tmp_path, "rollout/precision=bf16", f"rollout.kv_cache={cache}", seed=seed)
    text = report(tmp_path).with_suffix(".md").read_text()
    assert "Uncorrected bf16 rollouts: 0 of 2" in text and "Uncorrected bf16, fp8_e4m3 cache rollouts: 0 of 2" in text


@pytest.mark.usefixtures("undrawn")
def test_no_collapse_anywhere(tmp_path):
    for seed in (0, 1):
        write(tmp_path, FP32, seed=seed)
        write(tmp_path, FP8, seed=seed)
    page = report(tmp_path).read_text()
    # 2/C(4, 2)
    assert "last reward: no comparison could be significant (1 tested). With 2 seeds an arm, p ≥ 0.33 before adjustment." in page
    assert "Survival of the arms, Steps gained on the reference arm, Early mismatch and time to collapse" in page
    assert "(it takes 10 collapses, and there are none)" in page


@pytest.mark.usefixtures("undrawn")
def test_the_regime_tells_what_other_precisions_would_have_had(tmp_path):
    """Two control runs with probes: K3 the median of 1e-4 and 3e-4 over both, ESS the lowest; both reached 0.95."""
    for seed, k3 in ((0, 1e-4), (1, 3e-4)):
        folder = write(tmp_path, FP32, seed=seed)
        probe = {"probe/bf16/k3_kl": k3, "probe/bf16/ess_sequence": 1 - k3, "probe/bf16/log_ratio_max_abs": 0.1 + k3}
        folder._append("metrics.jsonl", {**folder.metrics()[-1], **probe})
    (row,) = load(tmp_path).probes.to_dict("records")
    assert (row["probed"], row["reached_healthy"]) == ("bf16", "2/2")
    assert row["k3"] == pytest.approx(2e-4) and row["ess_sequence_min"] == 1 - 3e-4
    report(tmp_path)
    assert pd.read_csv(tmp_path / "evaluations.csv")["probe/bf16/k3_kl"].dropna().tolist() == [1e-4, 3e-4]
    assert "## Mismatch of other precisions" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_results_go_between_the_marks(made, tmp_path):
    readme = tmp_path / "README.md"
    begin, end = BEGIN.format(made[0]), END.format(made[0])
    others = f"{BEGIN.format(f'{made[0]} --seeds 0,1')}\n{END.format(f'{made[0]} --seeds 0,1')}\n"
    readme.write_text(f"# Title\n\n{begin}\nstale words\n{end}\n\n{others}")
    report(made[0], out=tmp_path / "out", into=readme)
    text = readme.read_text()
    assert (
        text.startswith(f"# Title\n\n{begin}\n- fp8_tensor rollouts collapsed 4 of 10")
        and "| fp8_tensor token-truncate | 0/5; " in text.replace("  ", "")
        and text.endswith(f"{end}\n\n{others}")
        and "stale words" not in text
    )
    assert "faultline report" in text and (tmp_path / "out" / "arms.csv").exists()
    report(made[0], out=tmp_path / "out", into=readme)
    assert readme.read_text() == text  # the same sweep gives the same words
    report(made[0], out=tmp_path / "out", into=readme, seeds=(0, 1))
    assert "- 4 of 20 runs" in readme.read_text() and "- 6 of 50 runs" in readme.read_text()
    assert f"`faultline report {made[0]} --seeds 0,1 --into" in readme.read_text()
    readme.write_text("# No marks\n")
    with pytest.raises(UserError, match="needs the line <!-- begin: faultline report runs/demo --> once"):
        insert(readme, "runs/demo", "x")


def test_csv_holds_the_numbers(made):
    arms, runs, seen = (pd.read_csv(made[0] / f"{name}.csv") for name in ("arms", "runs", "evaluations"))
    assert len(seen) == 50 * 21 and (seen.groupby("run")["eval/reward"].last() == runs.set_index("run")["final_reward"]).all()
    apart = arms.set_index("arm")
    of = runs.groupby("arm")["final_reward"].mean()
    assert apart["from_control"]["fp8_tensor ppo"] == pytest.approx(of["fp8_tensor ppo"] - of["fp32 ppo"])
    assert len(arms) == 10 and len(runs) == 50 and arms["collapsed"].sum() == runs["event"].sum() == 6
    assert runs.loc[runs.event, "onset_drawdown"].notna().all()
    survived = runs[runs.outcome == "survived"]
    assert (survived["best_reward"] >= survived["final_reward"]).all() and (survived["final_reward"] > 0.5).all()
    assert (runs.loc[runs.event, "final_reward"] < 0.5 * runs.loc[runs.event, "best_reward"]).all()


@pytest.mark.slow
def test_the_command_line(made, tmp_path):
    command = [sys.executable, "-m", "faultline", "report"]
    done = subprocess.run([*command, str(made[0]), "--out", str(tmp_path / "r")], capture_output=True, text=True)
    assert done.returncode == 0 and f"Page: {tmp_path}/r/report.html" in done.stdout, done.stderr
    for wrong, said in (
        ([str(tmp_path / "none")], "none: no such folder"),
        (["wandb-offline:" + str(tmp_path)], "no offline W&B run below it"),
        ([str(made[0]), "--into", str(tmp_path / "no.md")], "needs the line"),
        ([str(made[0]), "--seeds", "3-7"], "3-7: accepted are whole numbers separated by commas, as 3,4,5"),
    ):
        done = subprocess.run([*command, *wrong], capture_output=True, text=True)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
