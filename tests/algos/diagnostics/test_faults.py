"""The diagnosis of shipped dumps, of edits of them, and of a fault that a user adds."""

import dataclasses
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from algos.batch import Batch
from algos.diagnostics import rounding
from algos.diagnostics.evidence import Predicted
from algos.diagnostics.pairs import deviate, normal
from algos.faults import FAULTS
from algos.faults.base import Fault
from algos.faults.diagnose import diagnose, judge
from experiments.faults.edits import edited
from experiments.faults.read import batch as read

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "faultline" / "example"
SHIPPED = [EXAMPLE / "bf16.parquet", EXAMPLE / "fp8.parquet", *(ROOT / "experiments" / "study" / "smollm2").rglob("*.parquet")]
EDITS = {
    "rollout_zero": (0.2, "fill"), "rollout_floor": (0.02, "fill"), "log2": (1, "log_base"), "log10": (1, "log_base"),
    "swapped": (1, "swapped"), "shift": (0.5, "shift"), "permuted": (0.5, "permuted"), "duplicates": (0.5, "duplicates"),
    "prompt_fill": (4, "mask"), "padding": (4, "mask"), "eos_trainer": (0.5, "eos"), "eos_rollout": (0.5, "eos"),
}  # fmt: skip


@pytest.fixture(scope="module")
def example() -> dict[str, Batch]:
    return {path.stem: read(path)[0] for path in EXAMPLE.glob("*.parquet")}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_rounding_is_not_accused(path):
    own, _, tokens = read(path)
    found = diagnose(own, tokens=tokens)
    assert found.kind == "consistent", found


def informative(path: Path) -> Batch:
    """The responses of a dump that DAPO's dynamic sampling keeps: those of prompts whose rewards differ."""
    rows = pq.read_table(path, columns=["group", "reward"]).to_pandas()
    kept = torch.tensor((rows.groupby("group")["reward"].transform("nunique") > 1).to_numpy().nonzero()[0])
    return read(path)[0].rows(kept)


def test_no_sound_dump_is_accused_for_lack_of_the_groups_that_dapo_drops():
    """docs/diagnosis.md gives the numbers."""
    filtered = [kept for path in SHIPPED if path.stem != "raw" and len((kept := informative(path)).mask) >= 16]
    assert len(filtered) == 16 and [min(sizes := [len(one.mask) for one in filtered]), max(sizes)] == [40, 200]
    assert {diagnose(one).kind for one in filtered} == {"consistent"}


@pytest.mark.parametrize("name", ["bf16", "fp8"])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_named(example, edit, name):
    size, fault = EDITS[edit]
    found = diagnose(edited(example[name], edit, size, 7))
    assert found.fault == fault and found.kind == "fault", found
    assert found.evidence and found.check and found.strength >= 1


@pytest.mark.parametrize("name", ["bf16", "fp8"])
def test_one_seed_for_all_samples_of_a_prompt_is_named_duplicates(name):
    """All four samples of a prompt are its first one, with and without ids."""
    own, _, tokens = read(EXAMPLE / f"{name}.parquet")
    first = (own.prompt[:, None] == own.prompt).long().argmax(1)
    same = own.rows(first)._replace(prompt=own.prompt)
    for ids in (None, tokens[first]):
        assert diagnose(same, tokens=ids).fault == "duplicates"


@pytest.mark.parametrize("name", ["bf16", "fp8"])
def test_decimals_are_no_fill_and_a_floor_is_one(name):
    """log p of at least 0.001 is logged, and -6.9078 for the others."""
    own, _, tokens = read(EXAMPLE / f"{name}.parquet")
    for decimals in (2, 3, 4):
        columns = {field: getattr(own, field).double().round(decimals=decimals) for field in ("logp_rollout", "logp_old")}
        assert diagnose(own._replace(**columns), tokens=tokens).kind == "consistent"
    floor = diagnose(own._replace(logp_rollout=own.logp_rollout.clamp(min=math.log(1e-3))), tokens=tokens)
    assert floor.fault == "fill" and "-6.9" in floor.evidence, floor


@pytest.mark.parametrize("name", ["bf16", "fp8"])
def test_certain_endings_are_no_padding(name):
    """The last two tokens of each response have probability 1 on both sides, as forced end tokens have."""
    own, _, tokens = read(EXAMPLE / f"{name}.parquet")
    last = own.mask & (own.mask.flip(-1).cumsum(-1).flip(-1) <= 2)
    certain = own._replace(**{name: torch.where(last, 0.0, getattr(own, name)) for name in ("logp_rollout", "logp_old")})
    assert diagnose(certain).kind == "consistent" and diagnose(certain, tokens=tokens).kind == "consistent"
    assert diagnose(edited(own, "padding", 2, 7)).fault == "mask"


def test_the_check_of_raw_log_probabilities_names_the_key_of_each_program():
    """SkyRL 0.3.0 sets every key of engine_init_kwargs on vLLM's arguments."""
    check = FAULTS["raw_logprobs"].check
    assert "generator.inference_engine.engine_init_kwargs.logprobs_mode=processed_logprobs" in check["SkyRL"]
    assert "actor_rollout_ref.rollout.logprobs_mode=processed_logprobs" in check["verl"]


@pytest.mark.parametrize("temperature", [0.97, 1.05])
def test_raw_log_probabilities_near_a_temperature_of_1_look_swapped_and_their_check_says_so(temperature):
    """μ at 1 and π at T give 1/ρ the mean 1 exactly as exchanged columns do, and T stretches the logits by less than 5 %."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(300, 60, 50, generator=generator)
    policy = (logits / temperature).log_softmax(-1)
    tokens = torch.multinomial(policy.exp().flatten(0, 1), 1, generator=generator).view(300, 60, 1)
    logged, scored = (values.gather(-1, tokens)[..., 0] for values in (logits.log_softmax(-1), policy))
    noise = 0.02 * torch.randn(300, 60, generator=generator)
    made = Batch((logged + noise).clamp(max=0), torch.ones(300, 60, dtype=torch.bool), scored, prompt=torch.arange(300) // 4)
    found = diagnose(made, usual="bf16")
    assert found.fault == "swapped" and "raw_logprobs" in found.check["vLLM"]


def moved(scale: float, seed: int = 0) -> Batch:
    """512 tokens drawn by two-token policies of many logits, whose trainer multiplies the logits by `scale`."""
    draws = torch.Generator().manual_seed(seed)
    logit = torch.randn(64, 40, generator=draws).double() * 2
    side = torch.where(torch.rand(64, 40, generator=draws) < logit.sigmoid(), 1.0, -1.0)
    return Batch(
        torch.nn.functional.logsigmoid(side * logit),
        torch.ones(64, 40, dtype=torch.bool),
        torch.nn.functional.logsigmoid(side * logit * scale),
    )


@pytest.mark.parametrize("temperature", [0.67, 0.7, 1.4, 1.5])
def test_log_probabilities_that_were_divided_by_a_temperature_are_in_no_base(example, temperature):
    """log π/0.7 is 1.429·log π, and log₂ π is 1.443·log π. In BF16 the line leaves 0.2 % of the mismatch, which tells the two."""
    own = example["bf16"]
    found = diagnose(own._replace(logp_old=own.logp_old / temperature))
    assert found.kind != "consistent" and found.fault != "log_base", found
    for base in (2, 10):
        assert diagnose(own._replace(logp_old=own.logp_old / math.log(base))).fault == "log_base"


def test_a_sure_tokens_zero_beside_another_token_is_a_shift_and_no_fill(example):
    """The surest quarter of a percent has a log-probability of exactly 0, as in a sharp model. One column is moved."""
    own = example["bf16"]
    surest = own.logp_old >= own.logp_old[own.mask].quantile(0.9975)
    own = own._replace(logp_old=own.logp_old.masked_fill(surest, 0.0))
    draws = torch.Generator().manual_seed(0)
    mu = (own.logp_old * (1 + 0.03 * torch.randn(own.logp_old.shape, generator=draws))).clamp(max=0)
    follows = own.mask & torch.nn.functional.pad(own.mask[:, 1:], (0, 1))
    moved = torch.where(follows, mu.roll(-1, 1), 0.0)
    found = diagnose(own._replace(mask=follows, logp_rollout=moved, logp_old=torch.where(follows, own.logp_old, 0.0)))
    assert found.fault == "shift" and found.statistics["values/rollout_fill_share"] > 1e-4, found


def cut(logged: str, top_p: float, seed: int = 5) -> Batch:
    """256 responses of 20 of 100 tokens, drawn by top-p from the trainer's own policy, and logged "raw" or "processed"."""
    draws = torch.Generator().manual_seed(seed)
    policy = (torch.randn(256, 20, 100, generator=draws).double() * 2).softmax(-1)
    likeliest, places = policy.sort(-1, descending=True)
    kept = torch.zeros_like(policy).scatter(-1, places, likeliest * (likeliest.cumsum(-1) - likeliest < top_p))
    token = torch.multinomial(kept.view(-1, 100), 1, generator=draws).view(256, 20, 1)
    numbers = policy if logged == "raw" else kept / kept.sum(-1, keepdim=True)
    logp_rollout, logp_old = (part.gather(-1, token)[..., 0].log() for part in (numbers, policy))
    return Batch(logp_rollout, torch.ones(256, 20, dtype=torch.bool), logp_old)


def test_a_cut_moves_the_mean_ratio_only_if_it_is_logged():
    """Raw numbers of both sides are equal here, though μ drew from nine tenths of the mass: docs/diagnosis.md says so."""
    raw, processed = (diagnose(cut(logged, 0.9)) for logged in ("raw", "processed"))
    assert raw.kind == "consistent" and raw.statistics["identity/mean"] == pytest.approx(1)
    assert processed.fault == "truncated_sampling" and processed.statistics["identity/mean"] == pytest.approx(0.91, abs=0.02)


def test_a_temperature_is_named_by_who_logs_it():
    ahead = diagnose(moved(0.7))
    assert ahead.fault == "temperature" and "0.70" in ahead.evidence and ahead.question == "b"
    draws = torch.Generator().manual_seed(1)
    logit = torch.randn(64, 40, generator=draws).double() * 2
    side = torch.where(torch.rand(64, 40, generator=draws) < (logit / 0.7).sigmoid(), 1.0, -1.0)
    logged, sampled = (torch.nn.functional.logsigmoid(side * logit / t) for t in (1, 0.7))
    raw = diagnose(Batch(logged, torch.ones(64, 40, dtype=torch.bool), sampled))
    assert raw.fault == "raw_logprobs" and raw.question == "a", raw


def test_unrelated_columns_are_no_temperature():
    """The slope of independent columns is 0.01 here, as of T = 100, and the mean ratio 5 standard errors above 1."""
    draws = torch.Generator().manual_seed(3)
    rollout, old = (-torch.empty(300, 20).exponential_(generator=draws) for _ in range(2))
    found = diagnose(Batch(rollout, torch.ones(300, 20, dtype=torch.bool), old))
    assert found.kind == "unknown" and found.question == "a", found


def test_the_noise_of_a_sampler_is_no_temperature():
    """Logits of deviation 1, and noise of 0.7 in the sampler's: the slope is 1/(1 + 0.49) = 0.67, by attenuation alone."""
    draws = torch.Generator().manual_seed(0)
    true = torch.randn(256, 40, 100, generator=draws).double()
    mu, pi = (logits.log_softmax(-1) for logits in (true + 0.7 * torch.randn(true.shape, generator=draws), true))
    tokens = torch.multinomial(mu.exp().flatten(0, 1), 1, generator=draws).view(256, 40, 1)
    mu, pi = (part.gather(-1, tokens)[..., 0] for part in (mu, pi))
    found = diagnose(Batch(mu, torch.ones(256, 40, dtype=torch.bool), pi))
    assert found.kind == "consistent" and found.statistics["slope/temperature"] == pytest.approx(1 / 1.49, abs=0.02), found


def test_an_absurd_mean_ratio_is_the_samplers_even_without_a_standard_error():
    """One ratio of 10⁶ and 799 of e^-0.05: the mean is 1251, and z is 1. By Markov P(mean ≥ 1251) ≤ 1/1251 if μ sampled."""
    mu = torch.full((80, 10), -20.0, dtype=torch.float64) + torch.linspace(0, 1, 800).view(80, 10).double()
    pi = mu - 0.05
    pi[3, 5] = mu[3, 5] + math.log(1e6)
    found = diagnose(Batch(mu, torch.ones(80, 10, dtype=torch.bool), pi))
    assert (found.kind, found.question) == ("unknown", "a") and found.statistics["identity/z"] < 4, found
    assert found.statistics["identity/mean"] == pytest.approx((799 * math.exp(-0.05) + 1e6) / 800)
    assert "probability of at most 0.0008" in found.evidence


def test_a_broken_identity_without_a_name_is_unknown(example):
    found = diagnose(example["bf16"]._replace(logp_old=(example["bf16"].logp_old + 0.02).clamp(max=0.0)))
    assert found.kind == "unknown" and found.fault is None and not found.check
    assert "not explained by rounding" in found.evidence


def test_the_precision_says_how_much_rounding_explains(example):
    assert diagnose(example["fp8"], usual="fp8_channel").kind == "consistent"
    found = diagnose(example["fp8"], usual="bf16")  # 30 times what BF16 leaves in SmolLM2-135M; in a larger model it may be sound
    assert (found.kind, found.fault, found.question) == ("unknown", None, "b") and "--baseline" in found.check["yours"]
    assert rounding.most("unheard of") == rounding.COARSEST


def test_size_alone_accuses_a_layer_by_the_same_model_or_above_every_rounding(example):
    """K3 of FP8 is 30 times that of BF16, and 1.5 is above COARSEST, four times what 4-bit weights give."""
    own = diagnose(example["bf16"]).statistics["tails/k3"]
    assert diagnose(example["fp8"], usual=own).fault == "layer"
    by_precision = diagnose(example["fp8"], usual="bf16").statistics
    assert judge(by_precision | {"size/k3": 0.99}).kind == "unknown" and judge(by_precision | {"size/k3": 1.5}).fault == "layer"


def test_a_dump_without_a_fault_says_how_much_rounding_explains(example):
    own = diagnose(example["fp8"]).statistics["tails/k3"]
    assert diagnose(example["fp8"], usual=own).kind == "consistent"  # it counts instead of the precision
    found = diagnose(example["fp8"], usual=own / 4)
    assert found.kind in ("fault", "unknown") and found.question == "b" and found.statistics["size/k3_most"] == 3 * own / 4
    assert rounding.most(0.0) == 4e-8  # an exact control leaves room for another order of summation


def drawn_at(temperature: float, seed: int) -> tuple[Batch, torch.Tensor]:
    """512 responses of ten tokens out of eight, drawn at a temperature and logged at 1 by both sides, and their entropies."""
    draws = torch.Generator().manual_seed(seed)
    logp = (torch.randn(512, 10, 8, generator=draws).double() * 2).log_softmax(-1)
    tokens = torch.multinomial((logp / temperature).softmax(-1).flatten(0, 1), 1, generator=draws).view(512, 10, 1)
    noise = torch.randn(512, 10, generator=draws) * 0.003
    chosen = logp.gather(-1, tokens)[..., 0]
    return Batch(chosen, torch.ones(512, 10, dtype=torch.bool), (chosen + noise).clamp(max=0)), torch.special.entr(
        logp.exp()
    ).sum(-1)


def test_only_the_entropy_shows_tokens_of_another_sampler():
    batch, entropy = drawn_at(1.2, seed=3)
    assert diagnose(batch).kind == "consistent"  # both columns agree, and E[ρ] = 1 whatever was drawn
    found = diagnose(batch, predicted=Predicted(entropy))
    assert found.fault == "sampler" and found.question == "a" and found.statistics["surprise/excess"] > 0.05, found
    honest, entropy = drawn_at(1.0, seed=3)
    assert diagnose(honest, predicted=Predicted(entropy)).kind == "consistent"


def test_the_probability_of_a_repeated_token_shows_a_penalty():
    """512 responses of ten tokens out of eight, nearly equally probable, drawn with a presence penalty of half a nat.

    All tokens have nearly the same surprise, so only repetition tells. After k different tokens π(S) is about k/8, and q(S) about
    k/(k + (8 − k)·√e).
    """
    draws = torch.Generator().manual_seed(0)
    logp = (torch.randn(512, 10, 8, generator=draws).double() * 0.05).log_softmax(-1)
    entropy = torch.special.entr(logp.exp()).sum(-1)
    for penalty, kind in ((0.0, "consistent"), (0.5, "fault")):
        seen, drawn, prob = torch.zeros(512, 8, dtype=torch.float64), [], []
        for own in logp.unbind(1):
            prob.append((own.exp() * seen).sum(-1))
            drawn.append(torch.multinomial((own - penalty * seen).softmax(-1), 1, generator=draws)[:, 0])
            seen[torch.arange(512), drawn[-1]] = 1
        tokens = torch.stack(drawn, 1)
        chosen = logp.gather(-1, tokens[..., None])[..., 0]
        noise = torch.randn(512, 10, generator=draws) * 0.003
        batch = Batch(chosen, torch.ones(512, 10, dtype=torch.bool), chosen + noise)
        assert diagnose(batch, tokens=tokens, predicted=Predicted(entropy)).kind == "consistent"
        found = diagnose(batch, tokens=tokens, predicted=Predicted(entropy, torch.stack(prob, 1)))
        assert found.kind == kind, found
    assert found.fault == "sampler" and found.statistics["repeats/excess"] == pytest.approx(-0.09, abs=0.02)
    assert "are in their response already" in found.evidence


@pytest.mark.parametrize(("base", "root"), [(2, 0.684), (10, 2.273)])
def test_both_columns_in_another_base_are_named_by_two_tests(base, root):
    """The mean ratio and the agreement of samples fail together, and hold together in that base: ln 2 is 0.69, ln 10 2.30."""
    own, _, tokens = read(EXAMPLE / "fp8.parquet")
    both = own._replace(logp_rollout=own.logp_rollout / math.log(base), logp_old=own.logp_old / math.log(base))
    found = diagnose(both, tokens=tokens)
    assert found.fault == "log_base" and found.statistics["identity/exponent"] == pytest.approx(root, abs=1e-3)
    assert f"none with both columns in base {base}; E[(π/μ)^s] = 1 at s = {root:.2f}, as at" in found.evidence
    alone = diagnose(both)  # without ids one test fails, which other faults explain as well
    assert alone.kind != "consistent" and alone.fault != "log_base" and f"or both columns are in base {base}" in alone.evidence


def test_a_temperature_that_neither_column_has_is_no_base():
    """At T = 0.7 samples agree more often than logged, as in base 2. Their surprise falls, and in base 2 it would rise."""
    draws = torch.Generator().manual_seed(0)
    logp = (torch.randn(128, 1, 10, 8, generator=draws).double() * 2).log_softmax(-1).expand(-1, 4, -1, -1).flatten(0, 1)
    tokens = torch.multinomial((logp / 0.7).softmax(-1).flatten(0, 1), 1, generator=draws).view(512, 10)
    chosen = logp.gather(-1, tokens[..., None])[..., 0]
    batch = Batch(chosen, torch.ones(512, 10, dtype=torch.bool), chosen, prompt=torch.arange(512) // 4)
    entropy = torch.special.entr(logp.exp()).sum(-1)
    found = diagnose(batch, tokens=tokens, predicted=Predicted(entropy))
    assert found.fault == "sampler" and "both columns" not in found.evidence
    s = found.statistics
    assert s["collisions/z"] > 4.5 > abs(s["collisions/base2_z"]) and s["surprise/z"] < -4 and s["surprise/base2_z"] < -4
    halved = batch._replace(logp_rollout=chosen / math.log(2), logp_old=chosen / math.log(2))
    assert diagnose(halved, tokens=tokens, predicted=Predicted(entropy)).fault == "sampler"


def test_exchanged_columns_are_told_by_their_likelihood(example):
    swapped = edited(example["fp8"], "swapped", 1, 7)
    few = swapped.rows(slice(0, 32))  # eight prompts: their clustered error shows nothing
    found = diagnose(few)
    assert found.fault == "swapped" and found.statistics["identity/z"] < 4.5 and found.statistics["identity/likelihood"] > 12.7
    assert diagnose(example["fp8"].rows(slice(0, 32))).kind == "consistent"


def test_a_computation_that_is_wrong_to_the_end_is_no_prompt(example):
    own = diagnose(example["bf16"]).statistics
    moved = own | {"size/k3": 2.0, "places/head": 7.0, "places/head_z": 6.0, "tails/kurtosis": 3.0}
    assert judge(moved | {"places/rest": 4.5}).fault == "layer" and judge(moved | {"places/rest": 0.9}).fault == "prompt"


def rounded(seed: int = 0) -> Batch:
    """512 responses of 48 tokens out of 32, whose sampler rounds its logits to BF16. They are tripled from token 8 on."""
    draws = torch.Generator().manual_seed(seed)
    logits = torch.randn(512, 48, 32, generator=draws) * torch.where(torch.arange(48) < 8, 2.0, 6.0)[:, None]
    mu, pi = (part.double().log_softmax(-1) for part in (logits.bfloat16(), logits))
    tokens = torch.multinomial(mu.exp().flatten(0, 1), 1, generator=draws).view(512, 48, 1)
    mu, pi = (part.gather(-1, tokens)[..., 0] for part in (mu, pi))
    return Batch(mu, torch.ones(512, 48, dtype=torch.bool), pi, prompt=torch.arange(512) // 8)


def test_rounding_of_larger_logits_is_no_cache():
    """BF16 rounds a logit by a share of it, so three times the logit has nine times the mean square error."""
    found = diagnose(rounded(), usual="bf16")
    assert found.kind == "consistent", found
    s = found.statistics
    assert s["places/after"] / s["places/before"] > 6 and s["places/onset_z"] > 5 and s["places/onset"] == 8
    assert judge(s | {"size/k3": 0.01}).fault == "cache"  # the bound is 4 x 1.3e-3


def test_weights_that_lag_leave_the_others_to_be_compared(example):
    """One response is known to be sampled by older weights. FP8's K3 of the others is above what rounding to BF16 may leave."""
    own = example["fp8"]
    lag = torch.zeros(own.mask.shape, dtype=torch.long)
    lag[0] = 1
    found = diagnose(own, usual="bf16", lag=lag)
    assert (found.kind, found.question) == ("unknown", "b") and "none of which older weights sampled" in found.evidence
    assert diagnose(own, usual="fp8_tensor", lag=lag).kind == "consistent"
    # a response goes on after a sync with keys and values of older weights: its new tokens are not compared
    begun = torch.where(own.mask.cumsum(-1) == 1, 1, 0)
    assert (found := diagnose(own, usual="bf16", lag=begun)).kind == "consistent" and found.statistics["size/fresh"] == 0
    half = torch.zeros_like(lag)
    half[::2] = 1
    fresh = (own.mask & (half == 0)).sum() / own.mask.sum()
    s = diagnose(own, usual="bf16", lag=half).statistics
    assert s["size/fresh"] == pytest.approx(float(fresh)) and s["size/k3_most"] == 4 * 1.3e-3


def test_versions_that_are_known_to_change_explain_a_profile(example):
    own = example["bf16"]
    lag = torch.where(own.mask.cumsum(-1) <= 4, 2, 1)
    known = diagnose(own, lag=lag).statistics
    assert known["size/lag_spread"] == 1 and diagnose(own, lag=torch.ones_like(lag)).statistics["size/lag_spread"] == 0
    falling = known | {"places/head": 0.2, "places/rest": 0.01, "places/head_z": 6.0}
    assert judge(falling | {"size/lag_spread": 0.0}).fault == "prompt"
    assert judge(falling).kind == "consistent"


def test_a_mean_off_by_the_power_has_a_normal_deviate_of_four(example):
    """With 8 prompts that is t = 8.6, not 4: √(7·(e^(z²/7) − 1)), z = 4·59/57. Student's exact t is 8.47."""
    found = diagnose(example["fp8"])
    error, clusters = found.statistics["identity/error"], int(found.statistics["identity/clusters"])
    assert normal(found.power, error, clusters - 1) == pytest.approx(4) and 0.005 < found.power < 0.02
    assert deviate(4, 7) == pytest.approx(8.604, abs=1e-3)


def test_every_fault_is_whole():
    for name in FAULTS.names():
        fault = FAULTS[name]
        assert isinstance(fault, Fault) and fault.name == name and fault.check and fault.question in "abc"
        assert {field.name for field in dataclasses.fields(fault)} >= {"signature", "evidence", "severity", "sources"}


def test_a_user_adds_a_fault(example, monkeypatch):
    monkeypatch.setattr(FAULTS, "_targets", dict(FAULTS._targets))
    monkeypatch.setattr(FAULTS, "_loaded", dict(FAULTS._loaded))
    own = Fault(
        "mine", "a", 0, lambda s: 2.0 if s["size/responses"] == 512 else None, lambda s: "512 responses", {"mine": "it"}, "high"
    )
    FAULTS.register("mine", own)
    assert diagnose(example["bf16"]).fault == "mine"
    assert diagnose(example["bf16"].rows(slice(0, 400))).kind == "consistent"
