"""Every error of the specs, losses and estimators, with the part of its message that says what to do."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from algos.batch import Batch
from algos.conformance import example
from algos.corrections.apply import correct
from algos.corrections.spec import Correction, Plugin, Reject, Weight, check_combination
from algos.kl import k3_unbiased
from algos.objective import Objective
from algos.parameters import check
from algos.ratios import at_level
from algos.reductions import Counts, reduce
from algos.registry import LOSSES, Registry, RegistryError
from algos.returns import gae
from tests.algos.algo_cases import LOSS_PARAMS, correction, shared_batch

NAN = math.nan


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Weight("tokens", upper=2.0), "level=tokens: accepted are token, prefix, sequence, geometric, segment"),
        (lambda: Weight("token", "cap", upper=2.0), "action=cap: accepted are truncate, clip, mask"),
        (lambda: Weight(None, upper=2.0), "upper=2.0 has no effect while level is null; set level too"),
        (lambda: Weight(None, lower=0.5), "lower=0.5 has no effect while level is null; set level too"),
        (
            lambda: Weight("token", upper=0.5),
            "upper=0.5 is below 1, the ratio of two equal policies; upper must be ≥ 1",
        ),
        (
            lambda: Weight("token", "clip", 1.5, 2.0),
            "lower=1.5 is outside [0, 1]; 1 is the ratio of two equal policies",
        ),
        (lambda: Weight("token", "clip", -0.5, 2.0), "lower=-0.5 is outside [0, 1]"),
        (
            lambda: Weight("token", lower=0.5, upper=2.0),
            "lower=0.5 has no effect with action=truncate; use action=clip or",
        ),
        (lambda: Weight(apply=False), "apply=false has no effect while level is null; set level too"),
        (lambda: Weight("token", upper=2.0, apply="no"), "apply='no': must be true or false"),
        (lambda: Weight("token"), "upper is missing: action=truncate caps ρ at upper; give a ratio ≥ 1"),
        (lambda: Weight("token", "mask"), "lower and upper are both missing: action=mask would do nothing"),
        (lambda: Weight("token", upper=NAN), "upper=nan is not a number"),
        (lambda: Weight("token", upper=True), "upper=True is not a number; give one, or null for no bound"),
        (lambda: Weight("token", upper="2"), "upper='2' is not a number"),
        (lambda: Weight("token", "mask", 0, math.inf), "lower=0 has no effect: no value lies beyond it; set it to null"),
        (lambda: Weight("token", "clip", 0.0, 2.0), "lower=0.0 has no effect: no value lies beyond it"),
        (lambda: Weight("token", "mask", 0.5, math.inf), "upper=inf has no effect: no value lies beyond it"),
        (lambda: Weight("token", "clip", 1.0, 1.0), "lower=1.0 and upper=1.0 leave nothing but π = μ; move them apart"),
        (lambda: Reject("turn", upper=2.0), "level=turn: accepted are token, prefix, sequence, geometric, segment"),
        (lambda: Reject("token", "k1", upper=2.0), "statistic=k1: accepted are ratio, k2, k3, prob_diff, mult_error"),
        (lambda: Reject("token", upper=2.0, when="never"), "when=never: accepted are all, negative_advantage"),
        (lambda: Reject("token"), "lower and upper are both missing: the filter would keep everything"),
        (lambda: Reject("token", upper=0.9), "upper=0.9 is below 1"),
        (lambda: Reject("token", lower=1.1), "lower=1.1 is outside [0, 1]"),
        (lambda: Reject("token", lower=0), "lower=0 has no effect: no value lies beyond it; set it to null"),
        (lambda: Reject("token", upper=math.inf), "upper=inf has no effect"),
        (lambda: Reject("token", lower=1, upper=1.0), "lower=1 and upper=1.0 leave nothing but π = μ"),
        (lambda: Reject("token", lower="0.5"), "lower='0.5' is not a number"),
        (lambda: Reject("token", "k2", 0.1, 0.2), "lower=0.1 has no effect: k2 ≥ 0, its value when π = μ; use upper"),
        (lambda: Reject("token", "k3", upper=-0.2), "upper=-0.2 rejects everything: k3 ≥ 0, its value when π = μ; give a bound"),
        (lambda: Reject("sequence", "k3", upper=0), "upper=0 rejects everything: k3 ≥ 0, its value when π = μ; give a bound"),
        (lambda: Reject("token", "k2", upper=math.inf), "upper=inf has no effect"),
        (lambda: Reject("token", "k3", upper=NAN), "upper=nan is not a number"),
        (lambda: Reject("token", "mult_error", 0.1, 2.0), "lower=0.1 has no effect: mult_error ≥ 1, its value"),
        (lambda: Reject("token", "mult_error", upper=1), "upper=1 rejects everything: mult_error ≥ 1, its value when π = μ"),
        (lambda: Reject("token", "mult_error", upper=math.inf), "upper=inf has no effect"),
        (lambda: Reject("sequence", "mult_error", upper=2.0), "level=sequence sums mult_error, so no bound fits all"),
        (
            lambda: Reject("token", "prob_diff", 0.1, 0.2),
            "[0.1, 0.2] must contain 0, the value of prob_diff when π = μ",
        ),
        (lambda: Reject("token", "prob_diff", -5, 0.2), "lower=-5 has no effect: no value lies beyond it; set it to null"),
        (lambda: Reject("geometric", "prob_diff", -0.2, 7), "upper=7 has no effect: no value lies beyond it"),
        (lambda: Reject("sequence", "prob_diff", -math.inf, 7), "lower=-inf has no effect"),
        (lambda: Reject("token", "prob_diff", 0, 0.0), "lower=0 and upper=0.0 leave nothing but π = μ"),
        (lambda: Correction(ratio="new"), "ratio=new: accepted are old, current"),
        (lambda: Correction(normalize="token"), "normalize=token: accepted are none, batch"),
        (lambda: Correction(denominator="all"), "denominator=all: accepted are original, kept"),
        (lambda: Correction(ratio="current"), "ratio=current has no effect without a weight or a filter; use old"),
        (lambda: Correction(normalize="batch"), "while weight.level is null or weight.apply false; use none"),
        (lambda: Correction(denominator="kept"), "denominator=kept has no effect without a filter under reject; use original"),
    ],
)
def test_specs(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert message in str(error.value)


def test_bounds_that_something_lies_beyond():
    """The nearest settings that do have an effect; a sum over tokens is not held to [−1, 1]."""
    Weight("sequence", upper=math.inf)  # the one infinite bound: truncate's spelling of w = ρ
    Weight("token", upper=1)
    Reject("token", "prob_diff", -0.99, None)
    Reject("sequence", "prob_diff", -5, 7)
    Reject("token", upper=1)
    Reject("geometric", "k3", upper=1e-9)


def test_the_mismatch_cannot_be_counted_twice():
    weighted = Correction(weight=Weight("token", upper=2.0))
    with pytest.raises(ValueError, match=r"proximal=rollout with correction.weight.level=token counts the mismatch twice"):
        check_combination(weighted, "rollout", anchored=True)
    with pytest.raises(ValueError, match="proximal=new: accepted are old, rollout"):
        check_combination(weighted, "new", anchored=True)
    current = Correction(ratio="current", weight=weighted.weight)
    with pytest.raises(ValueError, match=r"correction.ratio=current with correction.weight.level=token counts the update twice"):
        check_combination(current, "old", anchored=True)
    check_combination(current, "old", anchored=False)
    check_combination(weighted, "rollout", anchored=False)
    check_combination(weighted, "old", anchored=True)
    check_combination(Correction(reject={"f": Reject("token", upper=2.0)}), "rollout", anchored=True)


BAD = [
    ("ppo", "eps_low", -0.1, "offset from ratio 1 in [0, 1]"),
    ("ppo", "eps_low", 1.1, "offset from ratio 1 in [0, 1]"),
    ("ppo", "eps_low", NAN, "offset from ratio 1"),
    ("ppo", "eps_high", -0.1, "offset from ratio 1, ≥ 0"),
    ("ppo", "eps_high", 1e300, "up to 1e9, or .inf for no bound"),
    ("ppo", "eps_high", "0.2", "offset from ratio 1, ≥ 0"),
    ("ppo", "eps_high", True, "offset from ratio 1, ≥ 0"),
    ("ppo", "dual_clip", math.inf, "above 1, up to 1e9, or null"),
    ("ppo", "dual_clip", 1.0, "an absolute ratio above 1, up to 1e9, or null"),
    ("gspo", "eps_high", -1.0, "offset from ratio 1, ≥ 0"),
    ("luspo", "eps_low", 2.0, "offset from ratio 1 in [0, 1]"),
    ("gmpo", "lower", 1.2, "an absolute ratio in [0, 1]"),
    ("gmpo", "upper", 0.4, "an absolute ratio ≥ 1"),
    ("cispo", "upper", 0.2, "an absolute ratio ≥ 1"),
    ("cispo", "lower", -0.1, "an absolute ratio in [0, 1]"),
    ("rollout_is", "upper", 0.9, "an absolute ratio ≥ 1"),
    ("ctpo", "log_low", 0.0, "nats, positive, up to 20"),
    ("ctpo", "log_dual_clip", -0.1, "nats, positive, up to 20"),
    ("minpro", "lower", 1.5, "an absolute ratio in [0, 1]"),
    ("minpro", "upper", 0.5, "an absolute ratio ≥ 1"),
    ("ctpo", "power", 1.5, "an exponent in [0, 1]"),
    ("sapo", "tau_pos", 0.0, "a positive temperature"),
    ("sapo", "tau_neg", -1.0, "a positive temperature"),
    ("dro", "beta", 0.0, "use loss=pg for none"),
    ("dppo", "divergence", "js", "must be tv or kl"),
    ("dppo", "delta_low", 1.5, "a probability in [0, 1]"),
    ("dppo", "delta_high", -0.1, "a probability in [0, 1]"),
    ("dppo", "delta_high", NAN, "a probability in [0, 1]"),
    ("dppo", "divergence", 1, "must be tv or kl"),
    ("dppo", "upper", 0.5, "an absolute ratio ≥ 1"),
    ("topr", "upper", 1e300, "from 1e-9 to 1e9"),
    ("sapo", "tau_pos", 1e-300, "from 1e-9 to 1e6"),
    ("clip_cov", "upper", math.inf, "≤ 1e+09"),
    ("clip_cov", "share", 0.0, "a share in (0, 1]"),
    ("clip_cov", "lower", 6.0, "a covariance below loss.upper=5.0"),
    ("clip_cov", "eps_low", 2.0, "offset from ratio 1 in [0, 1]"),
    ("kl_cov", "share", 1.5, "a share in (0, 1]"),
    ("kl_cov", "coef", -1.0, "a coefficient ≥ 0"),
    ("topr", "upper", 0.0, "a positive absolute ratio"),
    ("vespo", "k_pos", -1.0, "≥ 0 and finite"),
    ("vespo", "lambda_neg", math.inf, "≥ 0 and finite"),
]


@pytest.mark.parametrize(("name", "key", "value", "accepted"), BAD)
def test_loss_parameters(name, key, value, accepted):
    with pytest.raises(ValueError) as error:
        LOSSES[name](*example(torch.float64), **LOSS_PARAMS[name] | {key: value})
    assert f"loss.{key}={value!r}: " in str(error.value) and accepted in str(error.value)


def test_dppo_with_kl_takes_deltas_above_one():
    params = {"divergence": "kl", "delta_low": 3.0, "delta_high": math.inf, "upper": None}
    LOSSES["dppo"](*example(torch.float64), **params)
    with pytest.raises(ValueError, match=r"loss.delta_low=-1: must be ≥ 0: a probability in \[0, 1\] for tv, nats for kl"):
        LOSSES["dppo"](*example(torch.float64), **params | {"delta_low": -1})


@pytest.mark.parametrize("name", [name for name in LOSSES.names() if LOSSES[name].anchored])
def test_an_anchored_loss_says_that_it_needs_its_anchor(name):
    logp, _, advantages, mask = example(torch.float64)
    with pytest.raises(ValueError, match="is anchored: it needs logp_prox"):
        LOSSES[name](logp, None, advantages, mask, **LOSS_PARAMS[name])


def test_shapes_are_asserted():
    logp, prox, advantages, mask = example(torch.float64)
    for batch in (
        (logp, prox[:, :2], advantages, mask),
        (logp, prox, advantages[:, :1], mask),
        (logp, prox, logp, mask * 1),
    ):
        with pytest.raises(AssertionError):
            LOSSES["ppo"](*batch, **LOSS_PARAMS["ppo"])


def test_corrections_name_the_missing_input():
    batch = shared_batch()[1]._replace(advantages=None)
    cases = {
        "reject.neg.when=negative_advantage needs the advantages": {"neg": Reject("token", upper=2.0, when="negative_advantage")},
        "level=segment needs segments": {"turn": Reject("segment", upper=2.0)},
        "corrections=m3po: unknown; known are m2po": {"m": Plugin("m3po")},
    }
    for message, reject in cases.items():
        with pytest.raises(ValueError, match=message):
            correct(batch, Correction(reject=reject))
    with pytest.raises(ValueError, match="the mismatch ratio needs logp_old"):
        correct(batch._replace(logp_old=None), Correction())


def test_a_selecting_loss_without_its_selection():
    logp, batch = shared_batch()
    objective = Objective(functools.partial(LOSSES["kl_cov"], **LOSS_PARAMS["kl_cov"]), Correction(), "old", "token_mean")
    corrected = correct(batch, Correction())
    with pytest.raises(ValueError, match=r"this loss selects tokens: pass it the rows of Objective.select"):
        objective(logp, batch, corrected, Counts.of(batch.mask))


def test_reductions():
    values, mask = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
    counts = Counts.of(mask)
    with pytest.raises(ValueError, match="reduce=mean: accepted are token_mean, token_sum"):
        reduce(values, correction(mask), counts, "mean")
    with pytest.raises(ValueError, match="reduce=prompt_mean needs counts of prompts"):
        reduce(values, correction(mask), counts, "prompt_mean")
    for mode, norm in (("seq_mean_token_sum_norm", None), ("seq_mean_token_sum_norm", 0), ("token_mean", 8)):
        with pytest.raises(ValueError, match=f"reduce={mode} with norm={norm}: seq_mean_token_sum_norm needs norm > 0"):
            reduce(values, correction(mask), counts, mode, norm)


def test_the_rest():
    mask = torch.ones(1, 2, dtype=torch.bool)
    zeros = torch.zeros(1, 2)
    with pytest.raises(ValueError, match="level=turn: accepted are token, prefix, sequence"):
        at_level(zeros, mask, "turn")
    for tau in (0, NAN, 1e300, "0.04", None):
        with pytest.raises(ValueError) as error:
            correct(Batch(zeros, mask, zeros), Correction(reject={"m": Plugin("m2po", {"tau": tau})}))
        assert str(error.value).startswith(f"correction.reject.m.params.tau={tau!r}: must be the largest mean of")
    with pytest.raises(ValueError, match=r"^correction.reject.m.params.tau: missing; it is the largest mean of"):
        correct(Batch(zeros, mask, zeros), Correction(reject={"m": Plugin("m2po")}))
    with pytest.raises(ValueError, match=r"^correction.reject.m.params: sqrt\(x, /\) cannot be called as \(log_ratio, mask"):
        correct(Batch(zeros, mask, zeros), Correction(reject={"m": Plugin("math:sqrt")}))
    with pytest.raises(ValueError, match="kl=k3_unbiased needs logp_prox"):
        k3_unbiased(zeros, zeros, mask)
    for key in ("gamma", "lam"):
        with pytest.raises(ValueError, match=rf"advantage.{key}=1.5: must be a number in \[0, 1\]"):
            check("advantage", gae, {"gamma": 1.0, "lam": 1.0} | {key: 1.5}, provided=gae.needs)


def test_registry():
    registry = Registry("toys", {"ok": "math:sqrt", "broken": "math:no_such_function"})
    assert registry["ok"](4) == 2 and registry["math:floor"](2.5) == 2
    registry.register("mine", len)
    assert registry.names() == ["broken", "mine", "ok"] and registry["mine"] is len
    with pytest.raises(RegistryError, match="toys=mine: the name is taken"):
        registry.register("mine", len)
    with pytest.raises(RegistryError, match="toys=other: unknown; known are broken, mine, ok, or a path of the form"):
        registry["other"]
    absent = {
        "broken": "module math has no 'no_such_function'",
        "no_such_package:function": "there is no module no_such_package",
        "algos.no_such_module:function": "there is no module algos.no_such_module",
        "math:": "module math has no ''",
        ":": "'' is no name of a module",
        "../math:sqrt": "'../math' is no name of a module",
        "a:b:c": "there is no module a",
    }
    for name, reason in absent.items():
        with pytest.raises(RegistryError) as error:
            registry[name]
        assert reason in str(error.value) and "package.module:function" in str(error.value)
        assert error.value.__cause__ is None, "a wrong path is told without a traceback"


def test_a_plug_in_that_fails_keeps_its_own_traceback(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in {"fails": "1 / 0", "lacks": "import no_such_package"}.items():
        (tmp_path / f"{name}.py").write_text(text)
        with pytest.raises(RegistryError, match=f"toys={name}:made: the plug-in failed to load") as error:
            Registry("toys", {})[f"{name}:made"]
        assert isinstance(error.value.__cause__, ZeroDivisionError if name == "fails" else ModuleNotFoundError)
