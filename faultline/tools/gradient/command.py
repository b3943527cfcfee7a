"""`faultline gradient`: check the arguments, compare the gradients of losses and corrections, and write the files with notes."""

from __future__ import annotations

from pathlib import Path

import torch

from faultline.tools.gradient import page
from faultline.tools.gradient.enumerable import exact_table
from faultline.tools.gradient.methods import ALONG, DEFAULT, methods
from harness.errors import UserError


def gradient_command(
    checkpoint: Path | None,
    *,
    losses: list[str] | None = None,
    corrections: list[str] | None = None,
    enumerable: bool = False,
    paired: bool = False,
    noise: float = 0.3,
    prompts: int = 64,
    batches: int = 32,
    reference: int | None = None,
    layers: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    trust: bool = False,
) -> Path:
    """Compare losses and corrections by their gradients, print and write the result. Returns the path of the page or table.

    checkpoint: a run folder, or one of its checkpoints; None with `enumerable`.
    losses: by default the run's own, or pg with `enumerable`. corrections: names of presets, by default `methods.DEFAULT`.
    enumerable: use a tiny policy, all of whose responses are listed, and a sampler whose logits differ by `noise`.
    prompts: number per batch, each with the run's group size.
    batches: number of batches from the rollout engine, the same for all losses and corrections.
    reference: number of batches sampled by the trainer's own policy, for the true gradient; 64 unless given.
    paired: sample no batches for the true gradient, and compare with no correction, in a table (`Paired`).
    layers: number of upper blocks whose parameters' gradient is taken; None: all (`GradientPolicy`).
    out: folder of the files; by default gradient-step-<n> in the run folder, or `gradient` with `enumerable`.
    trust: whether a run may import plug-ins, see `harness.run.restore.find`.
    """
    if enumerable == (checkpoint is not None):
        raise UserError("give either a checkpoint or --enumerable")
    if paired and (enumerable or reference is not None):
        raise UserError("--paired compares on the batches of a checkpoint alone; leave out --enumerable and --reference")
    torch.set_num_threads(1)
    corrections, reference = corrections or list(DEFAULT), reference or 64
    along = () if paired else ALONG
    if paired:
        corrections = ["none", *(name for name in corrections if name != "none")]
    if checkpoint is None:
        if layers is not None:
            raise UserError("--layers has no effect with --enumerable, whose policy is a table; leave it out")
        table = exact_table(methods(losses or ["pg"], corrections, "token_sum"), noise=noise, seed=seed)
        note = "Exact sums over all 81 responses of 4 tokens over 3 symbols; sd of one response, rmse of the mean of 256."
        return page.present(
            table, f"Exact gradients of an enumerable policy, logit noise {noise:g}", note, out or Path("gradient")
        )
    from faultline.tools.gradient.sampled import SampledGradients  # a checkpoint needs the packages of training
    from harness.run.restore import find, parts_at

    restored = find(checkpoint, trust=trust)
    config = restored.config
    compared = methods(losses or [config.loss.name], corrections, config.reduce.mode, config.reduce.norm, config.loss, along)
    out = out or restored.folder.parent.parent / f"gradient-{restored.folder.name}"
    title = f"Gradients at step {restored.step} of {config.path.name}"
    with parts_at(restored) as parts:
        gradients = SampledGradients(parts, prompts, seed, layers)
        table = gradients.paired(compared, batches) if paired else gradients.compare(compared, batches, reference)
    truth = "" if paired else f"The truth is the mean of {reference} such batches of the trainer's own policy. "
    note = (
        f"{batches} batches of {len(gradients.prompts)} prompts x {config.rollout.group_size} samples in "
        f"{config.rollout.precision.name}. {truth}"
        f"{'' if layers is None else f'Parameters: those of the upper blocks, {layers} in number, and of the last norm. '}"
        f"{'sd is that' if paired else 'sd and rmse are those'} of one batch. Intervals: bootstrap over batches."
    )
    return (page.present_paired if paired else page.present)(table, title, note, out)
