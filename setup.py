"""Build the package, with the description and the links that a package index shows. Everything else is in pyproject.toml.

A package index shows README.md without the files beside it. FAULTLINE_REPOSITORY=https://github.com/OWNER/NAME makes its links
and pictures absolute, and adds the project's links. Without this variable a relative link is replaced by its text.
"""

import os
import re
from pathlib import Path

from setuptools import setup

RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")
PAGES = {"Documentation": "blob/HEAD/docs/index.md", "Changelog": "blob/HEAD/CHANGELOG.md", "Issues": "issues"}


def description(readme: str, repository: str) -> str:
    """Return README.md with relative links made absolute under the URL `repository`, or reduced to their text if it is empty."""

    def absolute(link: re.Match[str]) -> str:
        picture, text, path = link.groups()
        kind = "raw" if picture else "blob"
        return f"{picture}[{text}]({repository}/{kind}/HEAD/{path})" if repository else text

    return RELATIVE.sub(absolute, readme)


def links(repository: str) -> dict[str, str]:
    """Name -> URL of each project link, for a package index; empty if `repository` is."""
    return {"Source": repository} | {name: f"{repository}/{page}" for name, page in PAGES.items()} if repository else {}


if __name__ == "__main__":
    address = os.environ.get("FAULTLINE_REPOSITORY", "").rstrip("/")
    setup(
        long_description=description(Path(__file__).with_name("README.md").read_text(encoding="utf-8"), address),
        long_description_content_type="text/markdown",
        project_urls=links(address),
    )
