"""TRL 1.16.0: GRPOTrainer's loss, run without a trainer around it, and the block of its sampling that makes the weights."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace

import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer

from algos.batch import Batch
from algos.corrections.spec import Correction, Reject
from algos.losses import vespo
from algos.objective import Objective
from algos.registry import KL
from tests.oracles.comparing import NORM, Case, batch, objective, our_loss, our_metrics, preset, with_gradient

CLIP = {"eps_low": 0.2, "eps_high": 0.28}
VESPO = {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0}
# loss_type, importance_sampling_level, delta → our loss, its parameters, reduction
LOSSES = {
    ("dapo", "token", None): ("ppo", CLIP | {"dual_clip": None}, "token_mean"),
    ("dapo", "token", 1.5): ("ppo", CLIP | {"dual_clip": 1.5}, "token_mean"),
    ("bnpo", "token", None): ("ppo", CLIP | {"dual_clip": None}, "token_mean"),
    ("grpo", "token", None): ("ppo", CLIP | {"dual_clip": None}, "seq_mean_token_mean"),
    ("dr_grpo", "token", None): ("ppo", CLIP | {"dual_clip": None}, "seq_mean_token_sum_norm"),
    ("grpo", "sequence", None): ("gspo", CLIP, "seq_mean_token_mean"),
    ("dapo", "sequence", None): ("gspo", CLIP, "token_mean"),
    ("luspo", "token", None): ("ppo", CLIP | {"dual_clip": None}, "seq_mean_token_sum"),
    ("luspo", "sequence", None): ("luspo", CLIP, "seq_mean_token_mean"),
    ("cispo", "token", None): ("cispo", {"lower": 0.0, "upper": 1.28}, "token_mean"),
    ("sapo", "token", None): ("sapo", {"tau_pos": 1.0, "tau_neg": 1.05}, "seq_mean_token_mean"),
    ("vespo", "token", None): ("vespo", VESPO, "token_mean"),
}
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def cases() -> Iterator[Case]:
    """Everything that TRL and this project share."""
    for key in LOSSES:
        name = "{} {}{}".format(*key[:2], "" if key[2] is None else " delta")
        yield Case(f"trl/loss/{name}", functools.partial(_loss, key))
        mean = " by response" if LOSSES[key][2].startswith("seq_mean") else ""
        yield Case(f"trl/loss of an empty response{mean}/{name}", functools.partial(_loss, key, kind="empty response"))
        yield Case(f"trl/loss beyond 20/{name}", functools.partial(_loss, key, kind="beyond 20"))
    for mode in MODES:
        for kind in ("dapo", "grpo"):
            yield Case(f"trl/preset/{mode}", functools.partial(_preset, mode, kind))
            yield Case(f"trl/preset beyond 20/{mode}", functools.partial(_preset, mode, kind, special="beyond 20"))
        yield Case(f"trl/gspo with a weight/{mode}", functools.partial(_gspo_and_weight, mode))
    for estimator in ("k3", "k3_unbiased"):
        for key in (("dapo", "token", None), ("grpo", "token", None)):
            yield Case(f"trl/kl/{estimator}", functools.partial(_kl, estimator, key))
    yield Case("trl/metrics/sampling", _metrics)
    yield Case("trl/off-policy mask", _off_policy_mask)
    yield Case("trl/off-policy mask with a weight", _off_policy_mask_and_weight)
    yield Case("trl/vespo with a weight", _vespo_and_weight)
    yield Case("trl/cispo without epsilon_high", _cispo_default)


def _loss(key: tuple, seed: int, kind: str = "") -> tuple[dict, dict]:
    loss_type, level, delta = key
    ours, params, reduction = LOSSES[key]
    (logp, b), high = batch(seed, kind), 1.28 if loss_type == "cispo" else 0.28
    theirs = _trl(logp, b, {}, loss_type=loss_type, importance_sampling_level=level, delta=delta, epsilon_high=high)
    mine = our_loss(logp, b, objective(ours, reduction, **params))
    if kind == "empty response" and reduction.startswith("seq_mean"):  # 7 of 8 have tokens
        mine["over all responses"], theirs["over all responses"] = mine["gradient"] * 7 / 8, theirs["gradient"]
    return mine, theirs


def _gspo_and_weight(mode: str, seed: int) -> tuple[dict, dict]:
    """importance_sampling_level=sequence with a correction."""
    logp, b = batch(seed)
    made = objective("gspo", "seq_mean_token_mean", correction=preset(f"trl/{mode}", "token_mean").correction, **CLIP)
    inputs = {"importance_sampling_ratio": _weights(b, mode)}
    return our_loss(logp, b, made), _trl(logp, b, inputs, loss_type="grpo", importance_sampling_level="sequence", use_vllm=True)


def _preset(mode: str, kind: str, seed: int, special: str = "") -> tuple[dict, dict]:
    logp, b = batch(seed, special)
    made = preset(f"trl/{mode}", "token_mean" if kind == "dapo" else "seq_mean_token_mean")
    made = made._replace(loss=objective("ppo", **CLIP, dual_clip=None).loss)
    return our_loss(logp, b, made), _trl(logp, b, {"importance_sampling_ratio": _weights(b, mode)}, loss_type=kind, use_vllm=True)


def _kl(estimator: str, key: tuple, seed: int) -> tuple[dict, dict]:
    """beta > 0; use_bias_correction_kl multiplies k3 by π_θ/π_old."""
    (logp, b), (ours, params, reduction) = batch(seed), LOSSES[key]
    corrected = estimator == "k3_unbiased"
    theirs = _trl(logp, b, {"ref_per_token_logps": b.logp_ref}, loss_type=key[0], beta=0.1, use_bias_correction_kl=corrected)
    return our_loss(logp, b, objective(ours, reduction, **params)._replace(kl=KL[estimator], kl_coef=0.1)), theirs


def _metrics(seed: int) -> tuple[dict, dict]:
    """TRL's sampling/importance_sampling_ratio/* are those of the bounded ratio."""
    _, b = batch(seed)
    mine = our_metrics(b, preset("trl/token_truncate", "token_mean").correction)
    names = ("mean", "max", "min")
    weights = _weights(b, "token_truncate")[b.mask]
    return {n: mine[f"rollout_corr/rollout_is_{n}"] for n in names}, {n: getattr(weights, n)() for n in names}


def _mask_objective(correction: Correction) -> Objective:
    return objective("ppo", "token_mean", correction=correction, **CLIP, dual_clip=None)


OPSM = Reject("geometric", "ratio", math.exp(-0.1), None, "negative_advantage")


def _off_policy_mask(seed: int) -> tuple[dict, dict]:
    """TRL's off-policy mask by π_θ over the sampler, as correction.ratio=current."""
    logp, b = batch(seed)
    theirs = _trl(logp, b, {"sampling_per_token_logps": b.logp_rollout}, off_policy_mask_threshold=0.1)
    return our_loss(logp, b, _mask_objective(Correction(ratio="current", reject={"opsm": OPSM}))), theirs


def _off_policy_mask_and_weight(seed: int) -> tuple[dict, dict]:
    logp, b = batch(seed)
    made = preset("trl/token_truncate", "token_mean").correction
    inputs = {"sampling_per_token_logps": b.logp_rollout, "importance_sampling_ratio": _weights(b, "token_truncate")}
    theirs = _trl(logp, b, inputs, off_policy_mask_threshold=0.1, use_vllm=True)
    return our_loss(logp, b, _mask_objective(Correction(weight=made.weight, reject={"opsm": OPSM}))), theirs


def _vespo_and_weight(seed: int) -> tuple[dict, dict]:
    logp, b = batch(seed)
    made = preset("trl/token_truncate", "token_mean")._replace(loss=functools.partial(vespo, **VESPO))
    return our_loss(logp, b, made), _trl(
        logp, b, {"importance_sampling_ratio": _weights(b, "token_truncate")}, loss_type="vespo", use_vllm=True
    )


def _cispo_default(seed: int) -> tuple[dict, dict]:
    """The bound is then epsilon = 0.2, an absolute ratio; ours must be at least 1."""
    logp, b = batch(seed)
    return our_loss(logp, b, objective("cispo", lower=0.0, upper=1.0)), _trl(logp, b, {}, loss_type="cispo", epsilon_high=0.2)


def _trl(logp: Tensor, b: Batch, inputs: dict[str, Tensor], **settings) -> dict:
    """GRPOTrainer._compute_loss in training mode, one accumulation step, on a batch whose forward pass is given."""
    accelerator = SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x)
    args = {f"vespo_{key}": value for key, value in VESPO.items()} | {"delta": settings.pop("delta", None)}
    args |= {
        "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.05,
        "use_bias_correction_kl": settings.pop("use_bias_correction_kl", False),
        "steps_per_generation": 1,
    }
    trainer = {
        "loss_type": "dapo", "importance_sampling_level": "token", "epsilon_low": 0.2, "epsilon_high": 0.28, "beta": 0.0,
        "off_policy_mask_threshold": None, "use_vllm": False, "vllm_importance_sampling_correction": True,
        "top_entropy_quantile": 1.0, "aux_loss_enabled": False, "_entropy_bonus_enabled": False,
        "current_gradient_accumulation_steps": 1, "max_completion_length": NORM, "accelerator": accelerator,
        "model": SimpleNamespace(training=True), "args": SimpleNamespace(**args),
        "_metrics": defaultdict(lambda: defaultdict(list)),
        "get_off_policy_mask": GRPOTrainer.get_off_policy_mask, "get_gamma_weights": GRPOTrainer.get_gamma_weights,
    }  # fmt: skip
    ids = torch.zeros_like(b.mask, dtype=torch.long)
    given = {"prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids, "completion_mask": b.mask.double(),
             "advantages": b.advantages[:, 0], "old_per_token_logps": b.logp_old, "num_items_in_batch": b.mask.sum()}  # fmt: skip

    def value(logp: Tensor) -> Tensor:
        forward = lambda *_, **__: (logp, torch.zeros_like(logp), None)  # noqa: E731
        owner = SimpleNamespace(**trainer | settings, _get_per_token_logps_and_entropies=forward)
        return GRPOTrainer._compute_loss(owner, None, given | inputs)

    found = with_gradient(value, logp)
    return found | {f"actor/{name}": values[-1] for name, values in trainer["_metrics"]["train"].items()}


@functools.cache
def _weight_block() -> str:
    """The statements of TRL's sampling method that turn log-probabilities into importance weights."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(GRPOTrainer._generate_and_score_completions)))
    made = "vllm_importance_sampling_ratio = torch.exp"
    blocks = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.If) and made in ast.unparse(n) and ast.unparse(n.test).startswith("self.use_vllm")
    ]
    assert len(blocks) == 1
    return ast.unparse(blocks[0])


def _weights(b: Batch, mode: str) -> Tensor:
    owner = SimpleNamespace(
        use_vllm=True, vllm_importance_sampling_correction=True, vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_max=3.0, vllm_importance_sampling_clip_min=None,
    )  # fmt: skip
    names = {"self": owner, "torch": torch, "math": math, "completion_mask": b.mask.double(), "tool_mask": None}
    names |= {"old_per_token_logps": b.logp_old, "sampling_per_token_logps": b.logp_rollout}
    exec(_weight_block(), names)  # TRL's own statements, which no function holds
    return names["vllm_importance_sampling_ratio"]
