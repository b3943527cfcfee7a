"""The sources of the map of mismatch (docs/sources.md), as options +regime/source=NAME."""

SOURCES = (
    "salted_parts",
    "kept_parts",
    "kept_prompts",
    "fp8_cache_stale",
    "fp8_cache_p99",
    "bf16_masters",
    "no_masters",
    "kahan",
    "stochastic",
    "mxfp4",
    "int4",
    "four_over_six",
    "w4a4_last",
    "w4a4_bf16",
    "unified_w4a4",
)
