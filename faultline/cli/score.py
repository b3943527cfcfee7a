"""Command line of `faultline score`, which writes a dump of one model, sampled by one engine and scored by a second."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from faultline.cli.arguments import count, new_file

HELP = "write a dump of a model: sampled by one engine, scored by another"
DESCRIPTION = """\
Write a dump of a model: responses that one engine samples and another scores. `faultline replay` compares the two.

ENGINE is hf (transformers, scores only), local or vllm. FORMAT is fp32, bf16, fp8_channel or another option of
rollout/precision; hf takes those without quantised weights."""
EXAMPLES = """\
faultline score models/smollm2 prompts.txt --sampler vllm:bf16 --scorer hf:fp32 --out vllm.parquet
faultline replay vllm.parquet --precision bf16 --gate 'k3<2e-3'
faultline score models/smollm2 vllm.parquet --scorer vllm:bf16 --out upgraded.parquet"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `faultline score`."""
    parser.add_argument("model", help="folder or hub name of a model with its tokenizer")
    own = "text file with a prompt a line; or a dump (.parquet) with prompt and tokens, whose log μ is kept"
    parser.add_argument("source", type=Path, help=own)
    parser.add_argument("--out", type=new_file, required=True, metavar="DUMP", help="parquet file that is written")
    parser.add_argument(
        "--sampler", default="vllm:bf16", metavar="ENGINE:FORMAT", help="what samples prompts of text (%(default)s)"
    )
    parser.add_argument("--scorer", default="hf:fp32", metavar="ENGINE:FORMAT", help="what scores the responses (%(default)s)")
    parser.add_argument("--samples", type=count(1), default=4, metavar="N", help="responses to each prompt of text (4)")
    parser.add_argument("--tokens", type=count(1), default=64, metavar="N", help="maximum tokens of such a response (64)")


def run(model: str, source: Path, out: Path, **options: Any) -> None:
    """Sample and score responses of a model, and write them to the dump `out`."""
    from faultline.tools.score import score

    score(model, source, out, **options)
