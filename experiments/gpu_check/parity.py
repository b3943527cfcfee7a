"""A check of actor, local engine and vLLM on the same tokens, by the comparison of `faultline doctor --parity`."""

from __future__ import annotations

from experiments.gpu_check.section import Table, number
from harness.compose import compose
from harness.config import parse
from harness.parity import NORMAL, parity


def check_parity() -> Table:
    """Compare every pair of engines in every precision. Raises RuntimeError if a difference is larger than normal."""
    configs = {name: parse(compose(f"rollout/precision={name}")) for name in {precision for precision, _ in NORMAL} - {"fp32"}}
    control = parse(compose("rollout/precision=fp32"))
    precisions = {name: config.rollout.precision for name, config in configs.items()} | {"fp32": control.rollout.precision}
    pairs = list(parity(precisions, control.actor))
    rows = [
        {
            "precision": pair.precision, "KV cache": pair.kv_cache, "pair": pair.pair, "mean": number(pair.mean),
            "largest": number(pair.largest), "K3": number(pair.k3), "normal mean": number(NORMAL[pair.precision, pair.kv_cache]),
        }
        for pair in pairs
    ]  # fmt: skip
    if off := [f"{pair.precision} {pair.pair}" for pair in pairs if not pair.normal]:
        raise RuntimeError(f"further apart than is normal: {', '.join(off)}; `faultline doctor --parity` shows by how much")
    note = "Absolute differences of log-probabilities of the same tokens, in nats, on a small random model."
    return Table("Parity", note, rows)
