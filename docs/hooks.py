"""The site has the repository's pages at their own paths, so a relative link is the same on a code host and in the site.

mkdocs reads the folder docs/. This hook puts in its place README.md and docs/*.md, every page that these lead to by links, and
every file that one of the pages links or shows. The pages of the API are made from docstrings.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
"""The path of a relative link or picture."""

API = {
    "Faultline": "faultline.api faultline.integrations.verl faultline.integrations.trl",
    "Batch": "algos.batch algos.ratios",
    "Corrections": "algos.corrections.spec algos.corrections.apply algos.corrections.m2po",
    "Losses": "algos.losses.base algos.losses.clipped algos.losses.sequence algos.losses.smooth algos.losses.trust_region "
    "algos.losses.covariance algos.losses.weighted",
    "Objective": "algos.objective algos.reductions algos.advantages algos.returns algos.kl",
    "Diagnostics": "algos.diagnostics.mismatch algos.diagnostics.correction algos.diagnostics.probabilities "
    "algos.diagnostics.positions algos.diagnostics.pareto algos.diagnostics.routing",
    "Conformance": "algos.conformance algos.enumerable",
    "Extension": "algos.registry harness.tasks harness.rollouts harness.collapse harness.collapse.detectors",
    "Config": "harness.config.run harness.config.actor harness.config.rollout harness.config.task harness.config.model "
    "harness.config.objective harness.config.evaluation harness.config.warmstart harness.config.operation",
    "Results": "analysis.load analysis.results harness.dumps.schema harness.run.metrics harness.arms",
}
"""Page of the API -> the modules whose docstrings it shows."""


def pages_and_files(root: Path = ROOT) -> set[str]:
    """Paths in the repository of all that belongs to the site."""
    waiting = ["README.md", *(path.relative_to(root).as_posix() for path in root.glob("docs/*.md"))]
    found: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in found or not (root / path).is_file():
            continue
        found.add(path)
        if path.endswith(".md"):
            folder = posixpath.dirname(path)
            links = LINK.findall((root / path).read_text(encoding="utf-8"))
            waiting += [posixpath.normpath(posixpath.join(folder, link)) for link in links]
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs with the files of docs/ and of the theme."""
    site = [file for file in files if file.src_dir != config.docs_dir]
    site += [File(path, str(ROOT), config.site_dir, config.use_directory_urls) for path in sorted(pages_and_files())]
    for name, modules in API.items():
        text = f"# {name}\n\n" + "".join(f"::: {module}\n\n" for module in modules.split())
        site.append(File.generated(config, f"api/{name.lower()}.md", content=text))
    return Files(site)
