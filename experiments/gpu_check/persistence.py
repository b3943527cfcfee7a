"""A check of how far the mismatch of fixed responses persists while the policy is trained."""

from __future__ import annotations

import tempfile

import torch
from torch import Tensor

from experiments.gpu_check.model import Size
from experiments.gpu_check.section import Table, number
from harness.progress import Progress
from harness.run.folder import RunFolder
from harness.tasks import PAD
from harness.train.trainer import Trainer
from harness.validate import check

LAGS = (1, 5, 20)
RATES = ("1e-6", "1e-5", "1e-4")
PRECISIONS = ("bf16", "fp8_channel")


def check_persistence(size: Size) -> Table:
    """Measure the correlation of the first step's log ratios between syncs that are k optimizer steps apart."""
    rows = []
    progress = Progress(len(PRECISIONS) * len(RATES) * (size.steps + 1))
    for precision in PRECISIONS:
        for rate in RATES:
            ratios = _ratios(size, precision, rate, progress)
            lags = {f"k = {k}": number(correlation(ratios, k)) if k < len(ratios) else "" for k in LAGS}
            rows.append({"rollout": precision, "lr": rate, "rms (nats)": number(ratios.square().mean().sqrt().item())} | lags)
            print(*(f"{name} {value}" for name, value in rows[-1].items()), sep=", ", flush=True)  # an arm may take long
    note = (
        f"log π − log μ of the tokens of one batch after each of {size.steps} RL steps; correlations are not centred. "
        "1 says that the mismatch is frozen, 0 that it is drawn anew at each sync."
    )
    return Table("Persistence of the mismatch", note, rows)


def correlation(ratios: Tensor, lag: int) -> float:
    """Correlation at lag k of log ratios l [syncs, tokens].

    ρ_k = Σ_t Σ_i l_t,i · l_{t+k},i / √(Σ_t Σ_i l_t,i² · Σ_t Σ_i l_{t+k},i²)
    """
    before, after = ratios[:-lag], ratios[lag:]
    return ((before * after).sum() / (before.square().sum() * after.square().sum()).sqrt()).item()


def _ratios(size: Size, precision: str, rate: str, progress: Progress) -> Tensor:
    """Log ratios l of the fixed responses after 0, 1, … training steps, as [syncs, tokens]."""
    with tempfile.TemporaryDirectory() as root:
        config = size.config(
            f"rollout/precision={precision}",
            f"actor.lr={rate}",
            f"steps={size.steps}",
            f"run.root={root}",
            "evaluation.every=1000000",
            "dump.every=null",
        )
        with RunFolder(config.path).claim() as folder:
            trainer = Trainer(check(config), folder)
            sampler, scorer = trainer.sampler, trainer.scorer
            trainer.load_weights()
            prompts = sampler.draw_prompts(0)
            uniforms = torch.rand(len(prompts), size.answer, generator=torch.Generator().manual_seed(0))
            tokens = sampler.generate(sampler.engine, prompts, uniforms).tokens
            present = tokens != PAD
            ratios = []
            for step in range(size.steps + 1):
                if step:
                    trainer.step(step - 1)
                    trainer.load_weights()
                own, rollout = (engine.score(prompts, tokens) for engine in (scorer.own_policy, sampler.engine))
                ratios.append((own - rollout)[present].double().cpu())
                progress.show(f"{precision}, lr {rate}, step {step}/{size.steps}")
            sampler.engine.close()
    return torch.stack(ratios)
