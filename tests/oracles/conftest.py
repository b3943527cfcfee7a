"""The packages lie in a folder of their own (`make .venv/oracles/installed`), so that no other test sees what they bring."""

from pathlib import Path

if not (Path(__file__).parents[2] / ".venv/oracles/installed").exists():
    collect_ignore_glob = ["test_*.py"]
else:
    import tests.oracles.site.sitecustomize  # noqa: F401
