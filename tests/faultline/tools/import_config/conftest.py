"""Imports a config written in another program's keys, and reads what comes out."""

import pytest
import yaml

from faultline.tools.import_config import import_config


@pytest.fixture
def imported(tmp_path):
    """imported(text or dict) -> (the YAML below the comments, the notes, what was not translated)."""

    def run(source):
        path = tmp_path / "theirs.yaml"
        path.write_text(source if isinstance(source, str) else yaml.safe_dump(source, sort_keys=False))
        text = import_config(path)
        lines = text.splitlines()
        body = yaml.safe_load(text)
        body["options"] = {key.removeprefix("override /"): value for line in body.pop("defaults") for key, value in line.items()}
        return body, *([line.removeprefix(f"# {kind}: ") for line in lines if line.startswith(f"# {kind}: ")]
                       for kind in ("note", "not translated"))  # fmt: skip

    return run
