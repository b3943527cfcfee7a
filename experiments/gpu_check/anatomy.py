"""Tables of a real model's mismatch by precision and position, and of the speed of each rollout engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from algos.diagnostics.positions import by_position, position_rows
from experiments.gpu_check.drawing import draw
from experiments.gpu_check.model import Policy, Scored, Size
from experiments.gpu_check.section import CheckFailed, Table, number
from harness.dumps.files import write
from harness.errors import UserError
from harness.rollouts.vllm_support import installed
from harness.tasks import PAD
from harness.train.model.actor import DeepSpeedActor


def check_anatomy(size: Size, dumps: Path | None = None) -> list[Table]:
    """Compare rollout engines in each precision on equal prompts and random numbers: tables by precision and by position.

    dumps: folder for a dump of the responses per engine and precision, which `faultline replay` reads, and for their picture.
    Raises CheckFailed at its end if the local engine has a mismatch in fp32.
    """
    policy = Policy(size)
    rows, positions, refused, off = [], [], {}, 0.0
    for kind in ("local", "vllm") if installed() else ("local",):
        for arm in size.arms:
            try:
                scored = policy.scored(kind, arm)
            except UserError as error:
                refused[f"{kind} {arm}"] = str(error)
                continue
            rows.append(_row(scored))
            print(f"{kind} {arm}: {rows[-1]['K3']} nats per token", flush=True)
            positions.append(_by_position(scored))
            if dumps:
                write(dumps / f"{kind}-{arm.replace(' ', '-')}.parquet", columns(scored, policy))
            if (kind, arm) == ("local", "fp32"):
                rows.append(_training_forward(scored, policy))
                off = float(scored.log_ratio.abs().max())
    note = (
        f"{len(policy.prompts)} responses of each arm to the same prompts, at most {size.answer} tokens. K3 in nats per token. "
        "Tokens/s counts response tokens; prompts are read in the same time."
    )
    if dumps:
        draw(dumps).savefig(dumps / "anatomy.png", dpi=110)
    if refused:
        note += "\n\nNot computed:" + "".join(f"\n- {name}: {reason}." for name, reason in refused.items())
    where = "K3 in nats per token. A column holds the positions after the column before it, up to its own."
    tables = [Table("Mismatch by precision", note, rows), Table("Mismatch by position", where, positions)]
    if off > 0:
        raise CheckFailed(f"the control is not exact: log ratios up to {off:.1e} nats", tables)
    return tables


def _row(scored: Scored) -> dict[str, str]:
    statistics, tokens = scored.statistics, int(scored.mask.sum())
    return {
        "engine": scored.engine,
        "arm": scored.arm,
        "tokens": str(tokens),
        "K3": number(statistics["k3_kl"]),
        "token ESS": f"{statistics['ess_token']:.3f}",
        "sequence ESS": f"{statistics['ess_sequence']:.3f}",
        "largest abs. log ratio": number(statistics["log_ratio_max_abs"]),
        "Pareto k": number(statistics["pareto_k"]),
        "tokens/s": f"{tokens / scored.seconds:.0f}",
    }


def _training_forward(control: Scored, policy: Policy) -> dict[str, str]:
    """Return a table row on the mismatch of the actor's training forward pass with the fp32 engine that sampled `control`."""
    actor = DeepSpeedActor(policy.net, policy.run.actor)
    tokens, width = control.rollout.tokens, policy.prompts.shape[1] + control.rollout.tokens.shape[1]
    logp = torch.zeros_like(control.logp)
    with torch.no_grad():
        for part in torch.arange(len(tokens)).split(max(1, (policy.run.actor.micro_tokens or 2048) // width)):
            logp[part] = actor.logp(policy.prompts[part], tokens[part])[0]
    return _row(control._replace(logp=logp, engine="actor", arm="training forward, fp32")) | {"tokens/s": ""}


def _by_position(scored: Scored) -> dict[str, str]:
    bins = by_position(position_rows(scored.batch))
    used = [b for b, tokens in enumerate(bins["tokens"].tolist()) if tokens]
    return {"engine": scored.engine, "arm": scored.arm} | {f"to {2**b}": number(float(bins["k3"][b])) for b in used}


def columns(scored: Scored, policy: Policy) -> dict[str, Any]:
    """Sampled responses as columns of a dump with one batch (docs/dumps.md), which `harness.dumps.files.write` takes."""
    prompts, tokens = policy.prompts.cpu().numpy(), scored.rollout.tokens.cpu().numpy()
    return {
        "step": np.zeros(len(tokens), dtype=np.int64),
        "group": np.arange(len(tokens)) // 4,
        "reward": policy.task.reward(prompts, tokens),
        "prompt": [row[row != PAD] for row in prompts],
        "tokens": tokens,
        "mask": scored.mask.cpu().numpy(),
        "logp_rollout": scored.rollout.logp.cpu().numpy(),
        "logp_old": scored.logp.cpu().numpy(),
    }
