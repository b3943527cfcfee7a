"""Every vectorised function equals a per-token loop in Python floats, on ragged batches with garbage in the padding."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import assume, given, settings

from algos.batch import Batch
from algos.corrections.apply import correct, mean_weight
from algos.corrections.m2po import m2po
from algos.corrections.spec import REDUCTIONS, Correction, Reject, Weight
from algos.diagnostics.mismatch import mismatch
from algos.diagnostics.pareto import pareto_k
from algos.diagnostics.positions import by_length, by_position, finish_positions, position_rows
from algos.diagnostics.probabilities import probabilities
from algos.kl import k1, k2, k3
from algos.ratios import log_ratio
from algos.reductions import Counts, reduce
from algos.registry import ADVANTAGES, LOSSES
from tests.algos import oracles
from tests.algos.algo_cases import LOSS_PARAMS, correction

CASES = [(name, params) for name, params in LOSS_PARAMS.items() if not name.endswith("_cov")] + [
    ("ppo", {"eps_low": 0.2, "eps_high": 0.2, "dual_clip": None}),
    ("dppo", {"divergence": "kl", "delta_low": 0.05, "delta_high": 0.1, "upper": None}),
]
few = settings(max_examples=25, deadline=None)


def close(actual, expected):
    torch.testing.assert_close(actual.double(), torch.as_tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "params"), CASES, ids=str)
@few
@given(batch=oracles.batches())
def test_losses(name, params, batch):
    logp, prox, advantages, mask = batch
    logp = torch.where(mask, logp.clamp(max=-1e-3), logp)  # a probability below 1
    prox = torch.where(mask, prox.clamp(max=-1e-3), prox)
    leaf = logp.clone().requires_grad_()
    out = LOSSES[name](leaf, prox, advantages, mask, **params)
    gradient = torch.autograd.grad(out.loss.sum(), leaf)[0]
    value, slope = torch.zeros_like(logp), torch.zeros_like(logp)
    for i, row in enumerate(oracles.tokens(mask)):
        lp, a = [logp[i, t].item() for t in row], [advantages[i, t].item() for t in row]
        d = [x - prox[i, t].item() for x, t in zip(lp, row, strict=True)]
        for j, t in enumerate(row):
            value[i, t], slope[i, t] = oracles.token_loss(name, d, lp, a, j, params)
    close(out.loss, value)
    close(gradient, slope)


levels = st.sampled_from(["token", "prefix", "sequence", "geometric", "segment", "segment_geometric"])
lowers, uppers = st.sampled_from([None, 0.1, 0.5, 0.9, 1.0]), st.sampled_from([None, 1.0, 1.1, 2.0, 1e9])


@st.composite
def weights(draw):
    action, lower, upper = draw(st.sampled_from(["truncate", "clip", "mask"])), draw(lowers), draw(uppers)
    if action == "truncate":
        return Weight(draw(levels), action, None, upper or math.inf)
    assume(lower != upper)
    return Weight(draw(levels), action, lower, upper)


@st.composite
def filters(draw):
    level = draw(st.one_of(levels, st.sampled_from(["worst_token", "suffix"])))
    statistic = draw(st.sampled_from(["ratio", "k2", "k3", "prob_diff", "mult_error", "binary_kl"]))
    when = draw(st.sampled_from(["all", "negative_advantage"]))
    if statistic == "ratio":
        lower, upper = draw(lowers), draw(uppers)
        assume(lower != upper)
        return Reject(level, statistic, lower, upper, when)
    if statistic == "prob_diff":
        return Reject(level, statistic, -0.05, 0.1, when)
    assume(statistic != "mult_error" or level not in ("prefix", "sequence", "segment"))
    return Reject(level, statistic, None, draw(st.sampled_from([0.02, 0.3])) + (statistic == "mult_error"), when)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(batch=oracles.batches(), weight=weights(), data=st.data(), normalize=st.sampled_from(["none", "batch"]))
def test_corrections(batch, weight, data, normalize):
    logp, prox, advantages, mask = batch
    reject = {str(i): f for i, f in enumerate(data.draw(st.lists(filters(), max_size=2)))}
    turns = torch.tensor(data.draw(st.lists(st.integers(0, mask.shape[1] - 1), min_size=mask.numel(), max_size=mask.numel())))
    turns = turns.reshape(mask.shape)
    l = log_ratio(logp, prox, mask)
    given = Batch(prox, mask, logp, advantages, turns)
    out = correct(given, Correction(weight=weight, reject=reject, normalize=normalize))
    expected, kept, units = torch.zeros_like(l), mask.clone(), {}
    for i, row in enumerate(oracles.tokens(mask)):
        logs, mu, ids = l[i].tolist(), prox[i].tolist(), turns[i].tolist()
        for t in row:
            members = oracles.unit(weight.level, row, t, ids)
            expected[i, t] = units[i, *members] = oracles.weight(oracles.ratio(logs, members, weight.level), weight)
            for filter_ in reject.values():
                own = oracles.unit(filter_.level, row, t, ids)
                excused = filter_.when == "negative_advantage" and advantages[i, t] >= 0
                kept[i, t] &= excused or oracles.passes(logs, mu, own, filter_)
    alone = correct(given, Correction(weight=weight)).weights
    close(mean_weight(alone, given, weight.level), sum(units.values()) / len(units) if sum(units.values()) > 0 else 1.0)
    if normalize == "batch" and sum(units.values()) > 0:
        expected /= sum(units.values()) / len(units)
    close(out.weights, expected)
    assert torch.equal(out.kept, kept)
    assert torch.equal(out.counted, mask)


@pytest.mark.parametrize("mode", REDUCTIONS)
@few
@given(batch=oracles.batches(), data=st.data())
def test_reductions(mode, batch, data):
    values, _, _, counted = batch
    extra = torch.tensor(data.draw(st.lists(st.booleans(), min_size=values.numel(), max_size=values.numel())))
    kept = counted & extra.reshape(values.shape)
    norm = 7 if mode == "seq_mean_token_sum_norm" else None
    rows = oracles.tokens(counted)
    prompt = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=len(rows), max_size=len(rows)))
    n, sequences = max(1, sum(map(len, rows))), max(1, sum(bool(row) for row in rows))
    sums = [sum(values[i, t].item() for t in row if kept[i, t]) for i, row in enumerate(rows)]
    means = [s / max(1, len(row)) for s, row in zip(sums, rows, strict=True)]
    of_prompt = {p: [i for i, q in enumerate(prompt) if q == p and rows[i]] for p in prompt}
    prompts = [sum(sums[i] for i in own) / sum(len(rows[i]) for i in own) for own in of_prompt.values() if own]
    expected = {
        "token_mean": sum(sums) / n,
        "token_sum": sum(sums),
        "seq_mean_token_mean": sum(means) / sequences,
        "seq_mean_token_sum": sum(sums) / sequences,
        "seq_mean_token_sum_norm": sum(sums) / sequences / 7,
        "prompt_mean": sum(prompts) / max(1, len(prompts)),
    }
    close(reduce(values, correction(kept, counted), Counts.of(counted, torch.tensor(prompt)), mode, norm), expected[mode])


@few
@given(batch=oracles.batches())
def test_kl_estimators(batch):
    logp, ref, _, mask = batch
    for i, row in enumerate(oracles.tokens(mask)):
        for t in row:
            x = (ref - logp)[i, t].item()
            close(k1(logp, ref, mask)[i, t], -x)
            close(k2(logp, ref, mask)[i, t], x * x / 2)
            close(k3(logp, ref, mask)[i, t], math.exp(x) - 1 - x)
    assert (k3(logp, ref, mask)[~mask] == 0).all()


def spread(values):
    """Standard deviation with n − 1; 0 of one value or none."""
    mean = sum(values) / max(1, len(values))
    return math.sqrt(sum((x - mean) ** 2 for x in values) / max(1, len(values) - 1))


def whitened(scores, lengths):
    """Scores less their mean over tokens, over their standard deviation over tokens."""
    tokens = [score for score, n in zip(scores, lengths, strict=True) for _ in range(n)]
    mean = sum(tokens) / max(1, len(tokens))
    return [(score - mean) / (spread(tokens) + 1e-6) for score in scores]


def grouped(name, groups, lengths, greedy):
    """The advantages of the responses to each prompt, one response at a time; groups, lengths: lists of lists."""
    mean = [sum(g) / max(1, len(g)) for g in groups]
    every = [x for g in groups for x in g]
    informative = sum(len(g) for g in groups if len(set(g)) > 1)
    flat_lengths = [n for g in lengths for n in g]
    centred = [[x - m for x in g] for g, m in zip(groups, mean, strict=True)]
    scores = {"reinforce_pp": groups, "reinforce_pp_baseline": centred}
    if name in scores:
        out = iter(whitened([x for g in scores[name] for x in g], flat_lengths))
        return [[next(out) for _ in g] for g in groups]

    def one(p, i):
        g, x, others = groups[p], groups[p][i], groups[p][:i] + groups[p][i + 1 :]
        return {
            "reinforce": lambda: x,
            "dr_grpo": lambda: x - mean[p],
            "grpo": lambda: (x - mean[p]) / (spread(g) + 1e-6),
            "grpo_batch_std": lambda: (x - mean[p]) / (spread(every) + 1e-6),
            "gpg": lambda: (x - mean[p]) * len(every) / max(1, informative),
            "rloo": lambda: x - sum(others) / len(others) if others else 0.0,
            "maxrl": lambda: (x - mean[p]) / mean[p] if mean[p] > 0 else 0.0,
            "pass_at_k": lambda: (max(g) - max(others)) / (spread(g) + 1e-6) if others else 0.0,
            "remax": lambda: x - greedy[p],
            "opo": lambda: x - sum(y * n for y, n in zip(g, lengths[p], strict=True)) / max(1, sum(lengths[p])),
        }[name]()

    return [[one(p, i) for i in range(len(g))] for p, g in enumerate(groups)]


@pytest.mark.parametrize("name", sorted({*ADVANTAGES.names()} - {"gae"}))  # which is by token
@few
@given(prompts=st.integers(1, 3), group=st.integers(1, 4), data=st.data())
def test_group_estimators(name, prompts, group, data):
    def draw(element):
        return data.draw(st.lists(st.lists(element, min_size=group, max_size=group), min_size=prompts, max_size=prompts))

    rewards, lengths = draw(st.sampled_from([0.0, 0.25, 1.0, 2.0])), draw(st.integers(1, 5))
    greedy = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=prompts, max_size=prompts))
    inputs = {"lengths": torch.tensor(lengths), "greedy": torch.tensor(greedy).double()}
    function = ADVANTAGES[name]
    out = function(
        torch.tensor(rewards).double(), **{need: inputs[need] for need in function.needs},
        **({"std": True} if name == "pass_at_k" else {}),
    )  # fmt: skip
    expected = torch.tensor(grouped(name, rewards, lengths, greedy), dtype=torch.float64)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)  # a std of 1e-6 magnifies rounding


@few
@given(batch=oracles.batches(), tau=st.sampled_from([0.01, 0.5, 2.0]))
def test_m2po(batch, tau):
    logp, prox, _, mask = batch
    l = log_ratio(logp, prox, mask)
    moments = l.square()[mask].tolist()
    fitting = [c for c in moments if (low := [m for m in moments if m <= c]) and sum(low) / len(low) <= tau]
    assert torch.equal(m2po(l, mask, tau=tau), mask & (l.square() <= max(fitting, default=-1.0)))


@settings(max_examples=60, deadline=None)
@given(batch=oracles.batches(rows=7))
def test_diagnostics(batch):
    logp, prox, _, mask = batch
    assume(mask.any())
    prox = torch.where(mask, prox, 0.0)
    l = log_ratio(logp, prox, mask)
    given = Batch(prox, mask, logp)
    out = {name.split("/")[1]: value.item() for name, value in (mismatch(given) | probabilities(given)).items()}
    rows = [[l[i, t].item() for t in row] for i, row in enumerate(oracles.tokens(mask)) if row]
    mus = [[prox[i, t].item() for t in row] for i, row in enumerate(oracles.tokens(mask)) if row]
    flat, mu = [x for row in rows for x in row], [x for row in mus for x in row]
    rho, n = [math.exp(x) for x in flat], len(flat)
    means, products = [sum(row) / len(row) for row in rows], [math.exp(sum(row)) for row in rows]
    rollout = [-sum(row) / len(row) for row in mus]
    p, q = [math.exp(x + y) for x, y in zip(flat, mu, strict=True)], [math.exp(y) for y in mu]
    diff = [abs(x - y) for x, y in zip(p, q, strict=True)]

    def mean(values):
        return sum(values) / len(values)

    def k3_to_mixture(a, b):
        return 2 * a / (a + b) - 1 - math.log(2 * a / (a + b))

    def ess(w):
        return sum(w) ** 2 / (len(w) * sum(x * x for x in w))

    expected = {
        "kl": -mean(flat),
        "k3_kl": mean([r - 1 - x for r, x in zip(rho, flat, strict=True)]),
        "chi2_token": mean([r * r for r in rho]) - 1,
        "chi2_seq": mean([r * r for r in products]) - 1,
        "ppl_ratio": mean([math.exp(-m) for m in means]),
        "log_ppl_diff": -mean(means),
        "log_ppl_abs_diff": mean([abs(m) for m in means]),
        "log_ppl_diff_max": max(-m for m in means),
        "log_ppl_diff_min": min(-m for m in means),
        "training_ppl": mean([math.exp(r - m) for r, m in zip(rollout, means, strict=True)]),
        "training_log_ppl": mean([r - m for r, m in zip(rollout, means, strict=True)]),
        "rollout_ppl": mean([math.exp(r) for r in rollout]),
        "rollout_log_ppl": mean(rollout),
        "ess_token": ess(rho),
        "ess_sequence": ess(products),
        "chi2_token_normalized": 1 / ess(rho) - 1,
        "chi2_sequence_normalized": 1 / ess(products) - 1,
        "ratio_mean": mean(rho),
        "ratio_max": max([1.0, *rho]),
        "ratio_min": min([1.0, *rho]),
        "ratio_std": math.sqrt(max(0.0, mean([(r - 1) ** 2 for r in rho]) - mean([r - 1 for r in rho]) ** 2)),
        "mult_prob_error": mean([math.exp(abs(x)) for x in flat]),
        "seq_mult_prob_error_mean": mean([mean([math.exp(abs(x)) for x in row]) for row in rows]),
        "seq_mult_prob_error_max": max(mean([math.exp(abs(x)) for x in row]) for row in rows),
        "seq_mult_prob_error_min": min(mean([math.exp(abs(x)) for x in row]) for row in rows),
        "k3_reverse": mean([math.exp(-x) - 1 + x for x in flat]),
        # NeMo-RL's: the mean of k3 of both policies against their mixture.
        "js_divergence": mean([k3_to_mixture(x, y) / 2 + k3_to_mixture(y, x) / 2 for x, y in zip(p, q, strict=True)]),
        "log_ratio_max_abs": max(map(abs, flat)),
        "beyond_bound": 0.0,
        "share_above_1.1": sum(max(r, 1 / r) > 1.1 for r in rho) / n,
        "share_above_2": sum(max(r, 1 / r) > 2 for r in rho) / n,
        "share_above_10": sum(max(r, 1 / r) > 10 for r in rho) / n,
        "prob_diff_mean": mean(diff),
        "prob_diff_max": max(diff),
        "prob_diff_std": math.sqrt(max(0.0, mean([x * x for x in diff]) - mean(diff) ** 2)),
    }
    assert out.keys() - expected.keys() == {"pareto_k", "prob_pearson"}
    for name, value in expected.items():
        assert out[name] == pytest.approx(value, rel=1e-9, abs=2e-8 if "std" in name else 1e-11), name


@few
@given(batch=oracles.batches(rows=6, columns=9))
def test_profiles(batch):
    logp, prox, _, mask = batch
    l = log_ratio(logp, prox, mask)
    rows = position_rows(Batch(prox, mask, logp))
    counts, kl, k3, lengths, of_length, tokens = ([0.0] * 16 for _ in range(6))
    for i, row in enumerate(oracles.tokens(mask)):
        for number, t in enumerate(row, start=1):
            place, length = (math.ceil(math.log2(n)) for n in (number, len(row)))
            counts[place] += 1
            kl[place] -= l[i, t].item()
            k3[place] += math.exp(l[i, t]) - 1 - l[i, t].item()
            of_length[length] += math.exp(l[i, t]) - 1 - l[i, t].item()
            tokens[length] += 1
        if row:
            lengths[math.ceil(math.log2(len(row)))] += 1
    close(by_position(rows)["tokens"], counts)
    close(by_position(rows)["k3"], [x / max(1, c) for x, c in zip(k3, counts, strict=True)])
    close(by_length(rows)["k3"], [x / max(1, c) for x, c in zip(of_length, tokens, strict=True)])
    close(by_position(rows)["kl"], [x / max(1, c) for x, c in zip(kl, counts, strict=True)])
    close(by_length(rows)["responses"], lengths)
    close((by_length(rows)["log_ratio_sum"] * by_length(rows)["responses"]).sum(), l.sum())
    named = finish_positions(rows)
    for b in range(16):
        for name, tokens_of in ((f"kl_to_position_{2**b}", counts), (f"k3_to_length_{2**b}", tokens)):
            assert named[f"profile/{name}"].isnan() == (tokens_of[b] == 0)


@pytest.mark.parametrize("n", [25, 26, 300])
def test_pareto_k(n):
    """Zhang and Stephens 2009 one θ at a time, with PSIS's tail size and its prior of 10 observations at 1/2."""
    log_weights = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64) * 1.5
    w = sorted(log_weights.exp().tolist(), reverse=True)
    size = math.ceil(min(n / 5, 3 * math.sqrt(n)))
    x = sorted(value - w[size] for value in w[:size])
    quartile, grid = x[math.floor(size / 4 + 0.5) - 1], 30 + math.floor(math.sqrt(size))

    def shape(theta: float) -> float:
        return sum(math.log(1 - theta * value) for value in x) / size

    thetas = [1 / x[-1] + (1 - math.sqrt(grid / (i - 0.5))) / (3 * quartile) for i in range(1, grid + 1)]
    profile = [size * (math.log(-theta / shape(theta)) - shape(theta) - 1) for theta in thetas]
    weights = [math.exp(value - max(profile)) for value in profile]
    k = shape(sum(theta * weight for theta, weight in zip(thetas, weights, strict=True)) / sum(weights))
    close(pareto_k(log_weights), (size * k + 5) / (size + 10))
