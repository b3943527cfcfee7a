"""YAML as people write it, without OmegaConf, which the base does not have."""

import pytest

from harness.errors import UserError
from harness.yaml_file import read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("-2E6", -2e6),
        (".5e1", 5.0),
        ("1.5e3", 1500.0),
        ("1e", "1e"),
        ("1_2", 12),
        ("2026-11-22", "2026-11-22"),
        (".inf", float("inf")),
        ("0.5_5.0", "0.5_5.0"),
    ],
)
def test_a_number_is_a_number(tmp_path, text, value):
    """YAML 1.1 reads 1e-3 as a text and 2026-11-22 as a date. verl's pair of bounds is a text."""
    (tmp_path / "a.yaml").write_text(f"key: {text}")
    assert read_yaml(tmp_path / "a.yaml") == {"key": value}


def test_a_key_that_stands_twice_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("a: 1\nb: {c: 1, c: 2}")
    with pytest.raises(UserError, match=r"a.yaml: neither YAML nor JSON \(line 2: found duplicate key c\)"):
        read_yaml(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("base: &base {a: 1}\nown: {<<: *base, b: 2}\nother: {<<: *base, a: 3}")
    assert read_yaml(tmp_path / "a.yaml") == {"base": {"a": 1}, "own": {"a": 1, "b": 2}, "other": {"a": 3}}
