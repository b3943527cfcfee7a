"""The sources of the map of mismatch (docs/sources.md), as options +regime/source=NAME."""

SOURCES = ("salted_parts", "kept_parts", "kept_prompts", "bf16_masters", "no_masters", "kahan", "stochastic")
