"""`python -m analysis.page.annotated REPORT.html OUT.png`: a screenshot of a report with numbered parts, for docs/report.md."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from harness.errors import UserError

WIDTH = 1440
"""Width of the browser window in pixels."""
COLOURS = 256
"""Number of colours to which the screenshot is reduced. With fewer, two precisions would get the same hue."""
CALLOUTS = {
    1: "h1",
    2: "ul.answer ~ p.note",
    3: "section:first-of-type figure",
    4: "Arms",
    5: "Held-out reward",
    6: "Outcomes",
    7: "Other definitions of a collapse",
}
"""CSS selector of the element, or title of the section, that each number in the picture marks."""

SCRIPT = """
const callouts = CALLOUTS;
onload = () => {
  const sections = [...document.querySelectorAll("section")];
  const titled = title => sections.find(section => section.querySelector("h2").textContent === title);
  const places = Object.entries(callouts).map(([number, name]) => [number, titled(name) ?? document.querySelector(name)]);
  const missing = places.filter(([, place]) => !place).map(([number]) => callouts[number]);
  if (missing.length) { document.title = "missing: " + missing.join(", "); return; }
  const shown = new Set(places.map(([, place]) => place.closest("section")));
  sections.filter(section => !shown.has(section)).forEach(section => section.remove());
  for (const [number, place] of places) {
    const mark = document.createElement("b");
    mark.textContent = number;
    const box = place.getBoundingClientRect();
    mark.style = `position: absolute; left: ${box.left - 44}px; top: ${box.top + scrollY}px; width: 32px; height: 32px;
      border-radius: 50%; background: #c2185b; color: white; font: bold 18px/32px sans-serif; text-align: center`;
    document.body.append(mark);
  }
  document.title = Math.ceil(document.documentElement.getBoundingClientRect().height);
}
"""


def annotate(report: Path, out: Path) -> Path:
    """Write a numbered screenshot of the page `report` to `out`, and return `out`. Raises UserError if a part is missing."""
    text = report.read_text(encoding="utf-8")
    script = SCRIPT.replace("CALLOUTS", json.dumps(CALLOUTS))
    added = f"<style>body {{ margin-left: 64px }}</style><script>{script}</script></body>"
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder) / "page.html", Path(folder) / "shot.png"
        page.write_text(text.replace("</body>", added), encoding="utf-8")
        dumped = _chromium(page, "--dump-dom", f"--window-size={WIDTH},900")
        title = dumped.partition("<title>")[2].partition("<")[0]
        if not title.isdigit():
            raise UserError(f"{report}: not a report of this version ({title}); make it anew with `faultline report`")
        height = int(title)
        _chromium(page, f"--screenshot={shot}", f"--window-size={WIDTH},{height + 20}", "--hide-scrollbars")
        Image.open(shot).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(out, optimize=True)
    return out


def _chromium(page: Path, *options: str) -> str:
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent / 'profile'}"]
    return subprocess.run([*command, *options, f"file://{page}"], capture_output=True, text=True, timeout=120, check=True).stdout


if __name__ == "__main__":
    print(annotate(Path(sys.argv[1]), Path(sys.argv[2])))
