"""Each statistic of the diagnosis on batches whose value follows by hand."""

import math

import pytest
import scipy.stats
import torch

from algos.batch import Batch
from algos.diagnostics.alignment import alignment
from algos.diagnostics.collisions import collisions
from algos.diagnostics.drift import drift
from algos.diagnostics.duplicates import duplicates
from algos.diagnostics.evidence import statistics
from algos.diagnostics.identity import by_log_probability, by_place, by_turn, by_version, exponent, identity
from algos.diagnostics.pairs import LogpPairs, clustered_mean, deviate, normal
from algos.diagnostics.places import places
from algos.diagnostics.repeats import repeated, repeats
from algos.diagnostics.saturation import saturation
from algos.diagnostics.slope import slope
from algos.diagnostics.support import support
from algos.diagnostics.surprise import surprise
from algos.diagnostics.tails import tails
from algos.diagnostics.values import values


def paired(mu, pi, mask=None, **others) -> LogpPairs:
    """Probabilities [B, T] as pairs."""
    mu, pi = torch.tensor(mu, dtype=torch.float64), torch.tensor(pi, dtype=torch.float64)
    return LogpPairs(Batch(mu.log(), torch.ones_like(mu, dtype=torch.bool) if mask is None else mask, pi.log(), **others))


def test_the_identity_holds_on_an_enumerated_policy():
    # μ = (1/2, 1/4, 1/4) and π = (1/4, 1/4, 1/2), each token as often as μ says: ρ = 1/2, 1/2, 1, 2
    found = identity(paired([[0.5], [0.5], [0.25], [0.25]], [[0.25], [0.25], [0.25], [0.5]]))
    assert found["identity/mean"] == pytest.approx(1, abs=1e-15) and found["identity/z"] == pytest.approx(0, abs=1e-9)
    assert found["identity/below"] == pytest.approx(0.25) and found["identity/above"] == pytest.approx(0.25)
    assert found["identity/swapped"] == pytest.approx((2 + 2 + 1 + 0.5) / 4)
    assert found["identity/k1"] == pytest.approx(math.log(2) / 4)  # (2·ln 2 + 0 − ln 2)/4
    assert found["identity/exponent"] == pytest.approx(1, abs=1e-9)


def test_the_likelihood_and_the_error_of_independent_tokens():
    # ρ = 1/2, 1/2, 1, 2: Σ l = −ln 2, Σ(ρ−1) = 0; without the last token Σ(ρ−1) = −1 and Σ(ρ−1)² = 1/2
    found = identity(paired([[0.5], [0.5], [0.25], [0.25]], [[0.25], [0.25], [0.25], [0.5]]))
    assert found["identity/likelihood"] == pytest.approx(-math.log(2)) and found["identity/drawn_z"] == pytest.approx(0, abs=1e-9)
    less = identity(paired([[0.5], [0.5], [0.25]], [[0.25], [0.25], [0.25]]))
    assert less["identity/drawn_z"] == pytest.approx(-math.sqrt(2))
    assert identity(paired([[0.5]], [[0.5]]))["identity/drawn_z"] == 0


def test_the_surprise_is_the_entropy_if_mu_sampled():
    # μ = (1/2, 1/4, 1/4) and π = (1/4, 1/4, 1/2), each token as often as μ says: Σ μ·ρ·(−log π) = H(π) = 3/2·ln 2
    pairs = paired([[0.5], [0.5], [0.25], [0.25]], [[0.25], [0.25], [0.25], [0.5]])
    found = surprise(pairs, torch.full((4, 1), 1.5 * math.log(2), dtype=torch.float64))
    assert found["surprise/excess"] == pytest.approx(0, abs=1e-12) and found["surprise/z"] == pytest.approx(0, abs=1e-9)
    assert found["surprise/expected"] == pytest.approx(1.5 * math.log(2)) and math.isnan(surprise(pairs)["surprise/z"])
    # π = μ, H = 0.8 nats, and tokens of surprise 1, 1 and 2 nats: s = 0.2, 0.2, 1.2, so V = 1.52. As 1.6 < V/0.8, z = 1.6/√V
    same = torch.tensor([[-1.0], [-1.0], [-2.0]]).double()
    batch = Batch(same, torch.ones(3, 1, dtype=torch.bool), same)
    off = surprise(LogpPairs(batch), torch.full((3, 1), 0.8, dtype=torch.float64))
    assert off["surprise/excess"] == pytest.approx(1.6 / 3) and off["surprise/z"] == pytest.approx(1.6 / math.sqrt(1.52))


def test_repeats_are_as_many_as_the_policy_says_if_mu_sampled():
    """Two tokens each, the first is 0. At the second μ(0) = 1/2 and π(0) = 1/4: ρ = 1/2 if it repeats, else 3/2."""
    mu, pi = [[0.5, 0.5], [0.5, 0.5]], [[0.5, 0.25], [0.5, 0.75]]
    tokens, prob = torch.tensor([[0, 0], [0, 1]]), torch.tensor([[0.0, 0.25], [0.0, 0.25]], dtype=torch.float64)
    found = repeats(paired(mu, pi), tokens, prob)  # s = 0, ½·¾, 0, −1½·¼
    assert found["repeats/excess"] == pytest.approx(0, abs=1e-12) and found["repeats/z"] == pytest.approx(0, abs=1e-9)
    assert found["repeats/expected"] == pytest.approx(0.125) and math.isnan(repeats(paired(mu, pi), tokens)["repeats/z"])
    # s = 0, −¼, 0, −¼: Σ s² = 1/8, and the variance by π is 2·¼·¾ = 3/8
    never = repeats(paired(pi, pi), torch.tensor([[0, 1], [0, 1]]), prob)
    assert never["repeats/excess"] == pytest.approx(-0.125) and never["repeats/z"] == pytest.approx(-0.5 / math.sqrt(3 / 8))


def test_rare_tokens_that_were_not_drawn_accuse_nobody():
    """256 tokens of two, the likelier with p = 0.995: with probability p²⁵⁶ = 28 % only it is drawn, and all s are alike.

    Σ s = −256·(1 − p)·log(p/(1 − p)) = −6.78 nats is above V/15 = 0.012. So z² = 2·6.78/15 − V/15² = 0.90, not 256. With one
    rare token Σ s = −6.78 + log(p/(1 − p)) = −1.48, V = 27.9 and Σ s is below V/15, so z = −1.48/√27.9.
    """
    p = 0.995
    gap, entropy = math.log(p / (1 - p)), -p * math.log(p) - (1 - p) * math.log(1 - p)
    for rare, z in ((0, -0.951), (1, -0.281)):
        mu = torch.full((16, 16), p).double()
        mu.view(-1)[:rare] = 1 - p
        found = surprise(paired(mu.tolist(), mu.tolist()), torch.full((16, 16), entropy, dtype=torch.float64))
        assert found["surprise/excess"] == pytest.approx((rare - 256 * (1 - p)) * gap / 256)
        assert found["surprise/z"] == pytest.approx(z, abs=1e-3)
    # a flat policy, H = 7.9 nats, with a token of p = 0.03 that none of 64 tokens is: s = 0.14, Σ s = 8.82, z² = 2·8.82/7.9 − …
    flat = torch.full((8, 8), 0.97 / 3000).double()
    entropy = -0.97 * math.log(0.97 / 3000) - 0.03 * math.log(0.03)
    found = surprise(paired(flat.tolist(), flat.tolist()), torch.full((8, 8), entropy, dtype=torch.float64))
    total = 64 * (-math.log(0.97 / 3000) - entropy)
    assert found["surprise/z"] == pytest.approx(math.sqrt(2 * total / entropy - total**2 / 64 / entropy**2))
    assert found["surprise/z"] < 1.5


def test_repeats_too_rare_to_be_seen_accuse_nobody():
    """256 tokens, each a repeat with probability 0.006: none is with probability 21 %. z = −256·0.006/√(256·0.006·0.994)."""
    mu = torch.full((16, 16), 0.5).tolist()
    prob = torch.full((16, 16), 0.006, dtype=torch.float64)
    found = repeats(paired(mu, mu), torch.arange(16).expand(16, 16), prob)
    assert found["repeats/excess"] == pytest.approx(-0.006)
    assert found["repeats/z"] == pytest.approx(-math.sqrt(256 * 0.006 / 0.994))  # −1.24


def test_a_token_is_repeated_if_any_earlier_one_of_its_response_is_equal():
    tokens = torch.tensor([[3, 1, 3, 1, 2], [0, 0, 0, 5, 5]])
    assert repeated(tokens).tolist() == [[False, False, True, True, False], [False, True, True, False, True]]
    every = torch.randint(0, 6, (20, 30), generator=torch.Generator().manual_seed(0))
    brute = (every[:, :, None] == every[:, None]).tril(-1).any(-1)
    assert torch.equal(repeated(every), brute)


def test_the_two_tails_apart():
    found = identity(paired([[0.5], [0.5]], [[0.25], [0.5]]))  # ρ = 1/2, 1
    assert found["identity/below"] == pytest.approx(0.25) and found["identity/above"] == 0
    assert found["identity/mean"] == 0.75 and math.isnan(found["identity/exponent"])


def test_the_exponent_tells_the_base_of_both_columns():
    l = torch.tensor([0.5, 0.5, 1.0, 2.0]).double().log()
    assert exponent(l / math.log(2)) == pytest.approx(math.log(2), abs=1e-9)
    assert math.isnan(exponent(torch.zeros(4, dtype=torch.float64)))


def test_the_tests_of_the_sampler_hold_in_the_base_of_both_columns():
    """μ = (1/2, 1/4, 1/4) and π = (1/4, 1/4, 1/2) in base 10, each token as often as μ says; H(π) = 3/2·ln 2 nats."""
    mu, pi = (torch.tensor([[a], [a], [0.25], [b]]).double().log10() for a, b in ((0.5, 0.25), (0.25, 0.5)))
    pairs = LogpPairs(Batch(mu, torch.ones(4, 1, dtype=torch.bool), pi))
    found = identity(pairs) | surprise(pairs, torch.full((4, 1), 1.5 * math.log(2), dtype=torch.float64))
    assert found["identity/base10_z"] == pytest.approx(0, abs=1e-9) and abs(found["identity/base2_z"]) > 0.1
    assert found["surprise/base10_z"] == pytest.approx(0, abs=1e-9) and found["surprise/z"] < -0.5
    # four prompts have two samples each of a token of probability 1/2, logged as −1; they agree in two prompts: 1/2 − e⁻¹
    half = torch.full((8, 1), 0.5).double().log2()
    batch = Batch(half, torch.ones(8, 1, dtype=torch.bool), half, prompt=torch.arange(8) // 2)
    told = collisions(LogpPairs(batch), torch.tensor([[0], [0], [1], [1], [0], [1], [1], [0]]))
    assert told["collisions/base2_z"] == pytest.approx(0, abs=1e-9) and told["collisions/z"] == pytest.approx(
        normal(0.5 - math.exp(-1), math.sqrt(4 / 3) / 4, 3)
    )


def test_the_error_is_that_of_a_ratio_over_clusters():
    # sums less mean·n of four clusters: mean 2; (1−2) + (2−2), 3 − 2, 1 − 2, 3 − 2 = −1, 1, −1, 1
    mean = clustered_mean(torch.tensor([1.0, 2, 3, 1, 3]).double(), torch.tensor([0, 0, 1, 2, 3]))
    assert mean.mean == 2 and mean.error == pytest.approx(math.sqrt(4 * 4 / 3) / 5)
    assert math.isnan(clustered_mean(torch.ones(3).double(), torch.arange(3)).error)  # too few clusters


def test_few_prompts_make_a_deviate_smaller():
    assert normal(4, 1, 7) == pytest.approx(57 / 59 * math.sqrt(7 * math.log(1 + 16 / 7)))  # Wallace; 2.79
    assert normal(-4, 1, 10**9) == pytest.approx(-4) and normal(0, 0, 7) == 0 and normal(1, 0, 7) == math.inf


@pytest.mark.parametrize("clusters", [4, 5, 8, 16, 64])
def test_a_deviate_of_few_prompts_claims_no_more_than_students_t(clusters):
    """Four normal deviates have probability 6.3e-5. So has Student's t of `deviate`, or less: half as much with 4 prompts."""
    p = 2 * scipy.stats.t.sf(deviate(4, clusters - 1), clusters - 1)
    assert 0.5 < p / (2 * scipy.stats.norm.sf(4)) <= 1
    assert normal(deviate(4, clusters - 1), 1, clusters - 1) == pytest.approx(4)


def test_the_identity_by_place_turn_version_and_log_probability():
    pairs = paired([[0.5, 0.5]] * 4, [[0.5, 0.25]] * 4, segments=torch.tensor([[0, 1]] * 4))
    assert [part.mean for part in by_place(pairs)] == [1, 0.5] and [part.mean for part in by_turn(pairs)] == [1, 0.5]
    assert {number: part.mean for number, part in by_version(pairs, torch.tensor([[3, 4]] * 4)).items()} == {3: 1, 4: 0.5}
    bins = by_log_probability(pairs)
    assert bins[4].mean == 0.75 and math.isnan(bins[0].mean)  # log 1/2 = −0.69 lies between −1 and −0.5


def test_numbers_that_are_not_finite_are_left_out_and_counted():
    pairs = LogpPairs(Batch(torch.tensor([[-1.0, -math.inf]]), torch.ones(1, 2, dtype=torch.bool), torch.tensor([[-1.0, -1.0]])))
    assert len(pairs) == 1 and values(pairs)["values/missing"] == 0.5
    with pytest.raises(ValueError, match="logp_old"):
        LogpPairs(Batch(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)))


def test_the_slope_of_logits_is_the_ratio_of_temperatures():
    x = torch.linspace(-4, 4, 40).double().view(8, 5)  # two tokens: log-softmax(z/T) has the logit z/T
    found = slope(paired(x.sigmoid().tolist(), (0.8 * x).sigmoid().tolist()))
    assert found["slope/temperature"] == pytest.approx(0.8) and found["slope/temperature_explained"] == pytest.approx(1)
    assert found["slope/temperature_most"] == pytest.approx(0.8)


def test_noise_of_the_sampler_lowers_one_slope_alone():
    """logit π = x and logit μ = x + e, e uncorrelated: the slope is Var x/(Var x + Var e), and Var π/Cov = 1."""
    x, e = torch.tensor([[-1.0, -1.0, 1.0, 1.0]] * 8).double(), torch.tensor([[-1.0, 1.0, -1.0, 1.0]] * 8).double()
    found = slope(paired((x + e).sigmoid().tolist(), x.sigmoid().tolist()))
    assert found["slope/temperature"] == pytest.approx(0.5) and found["slope/temperature_most"] == pytest.approx(1)


def test_the_slope_of_log_probabilities_is_that_of_the_base():
    mu = torch.linspace(-3, -0.1, 20).double().view(4, 5)
    found = slope(LogpPairs(Batch(mu / math.log(2), torch.ones(4, 5, dtype=torch.bool), mu)))
    assert found["slope/base"] == pytest.approx(math.log(2)) and found["slope/base_left"] == pytest.approx(0, abs=1e-15)


def test_a_cut_sampler_has_no_ratio_above_one_and_shows_what_it_kept():
    # π = (0.5, 0.3, 0.2) cut to its first two: μ = π/0.8, so that ρ = 0.8 whatever is drawn
    found = support(paired([[0.625], [0.375]], [[0.5], [0.3]]))
    assert found["support/one_sided"] == 1 and found["support/above"] == 0 and found["support/lowest"] == pytest.approx(0.8)
    assert support(paired([[1.0]], [[0.9]]))["support/certain_mass"] == pytest.approx(0.9)


def drawn(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return -torch.rand(rows, length, generator=torch.Generator().manual_seed(seed)).double() * 3 - 0.05


def test_alignment_finds_a_shift_and_another_row():
    pi, mask = drawn(6, 20), torch.ones(6, 20, dtype=torch.bool)
    straight = alignment(LogpPairs(Batch(pi, mask, pi)))
    assert straight["alignment/correlation"] == pytest.approx(1) and straight["alignment/shifted"] == 0
    ahead = alignment(LogpPairs(Batch(pi.roll(-1, 1), mask, pi)))
    assert ahead["alignment/shifted"] == 1 and ahead["alignment/correlation_next"] == pytest.approx(1)
    other = alignment(LogpPairs(Batch(pi.roll(1, 0), mask, pi)))
    assert other["alignment/permuted"] == 1 and other["alignment/shifted"] == 0
    noisy = alignment(LogpPairs(Batch(pi - 0.2, mask, pi)))
    assert noisy["alignment/permuted"] == 0 and noisy["alignment/shifted"] == 0


def test_a_response_that_fits_many_rows_is_not_said_to_be_permuted():
    # eleven rows of sure tokens are alike, and the trainer doubts the first: it fits ten others and is none of them
    mu = torch.full((11, 8), 0.9)
    pi = mu.clone()
    pi[0] = 0.4
    assert alignment(paired(mu.tolist(), pi.tolist()))["alignment/permuted"] == 0
    # with ten rows of other odds the twin is the only one that fits
    mu[2:], pi[2:] = 0.3, 0.3
    assert alignment(paired(mu.tolist(), pi.tolist()))["alignment/permuted"] == pytest.approx(1 / 11)


def test_a_short_response_is_not_said_to_be_shifted():
    # one token apart the columns agree to the last bit, which among four tokens chance does and among eight it does not
    mu = [0.9, 0.1, 0.8, 0.2, 0.7, 0.3, 0.6, 0.4]
    for tokens, share in ((7, 0.0), (8, 1.0)):
        found = alignment(paired([mu[:tokens]], [[0.5, *mu[: tokens - 1]]]))
        assert found["alignment/shifted"] == share


def test_repeats_are_held_against_the_odds_of_the_sampler():
    # four responses to one prompt, a fair coin twice: each of the others repeats one with probability 1/4: 4·3·(1/4)/2 pairs
    pairs = paired([[0.5, 0.5]] * 4, [[0.4, 0.4]] * 4, prompt=torch.zeros(4, dtype=torch.long))
    found = duplicates(pairs)
    assert found["duplicates/found"] == 6 and found["duplicates/expected"] == pytest.approx(1.5)
    assert found["duplicates/repeated"] == 0.75 and math.isnan(found["duplicates/z"])
    # eight prompts of two responses, in four of them equal: found − expected is 1 − 1/4 or −1/4 pairs a prompt, a mean of 1/4,
    # with an error of √(8/7·8·(1/2)²)/8 pairs: t = 1.32 of 7 degrees
    mu = torch.full((16, 2), 0.5).tolist()
    pi = [[0.4, 0.4] if row % 4 < 2 else [0.4, 0.4 + row / 100] for row in range(16)]
    pi = [[value[0] + (row // 2) / 1000, value[1]] for row, value in enumerate(pi)]  # prompts differ
    half = duplicates(paired(mu, pi, prompt=torch.arange(16) // 2))
    assert half["duplicates/found"] == 4 and half["duplicates/expected"] == pytest.approx(2)
    assert half["duplicates/z"] == pytest.approx(normal(0.25, math.sqrt(8 / 7 * 2) / 8, 7))


def test_samples_of_a_prompt_agree_as_often_as_the_odds_say():
    mu = torch.full((4, 1), 0.5).double().log()
    batch = Batch(mu, torch.ones(4, 1, dtype=torch.bool), mu, prompt=torch.zeros(4, dtype=torch.long))
    found = collisions(LogpPairs(batch), torch.tensor([[0], [0], [1], [1]]))
    assert found["collisions/found"] == pytest.approx(2 / 6) and found["collisions/expected"] == pytest.approx(0.5)
    assert math.isnan(collisions(LogpPairs(batch._replace(prompt=None)))["collisions/z"])


def test_agreements_too_rare_to_be_seen_accuse_nobody():
    # 64 prompts of 4 responses: 6·64 = 384 pairs, of which 0.2 % should agree: 0.77 pairs. None is seen.
    # KL(0‖e) = −log(1 − e), so that z = −√(−2·384·log 0.998) = −1.24
    spread = 0.002 * (0.5 + torch.rand(256, 1, generator=torch.Generator().manual_seed(0)).double())
    mu = (spread * 0.002 / spread.mean()).log()
    batch = Batch(mu, torch.ones(256, 1, dtype=torch.bool), mu, prompt=torch.arange(256) // 4)
    found = collisions(LogpPairs(batch), torch.arange(256)[:, None])
    assert found["collisions/found"] == 0 and found["collisions/expected"] == pytest.approx(0.002, rel=0.05)
    assert found["collisions/z"] == pytest.approx(-1.24, abs=0.04)
    # two of the six pairs of every prompt agree
    twice = collisions(LogpPairs(batch), torch.arange(256)[:, None] // 2)
    assert twice["collisions/found"] == pytest.approx(1 / 3) and twice["collisions/z"] > 4.5


def test_samples_of_one_seed_share_no_beginning():
    """Eight prompts have four equal samples each, 48 pairs a place; a beginning is shared if samples part behind it."""
    mu = torch.full((32, 6), 0.25).double().log()
    batch = Batch(mu, torch.ones(32, 6, dtype=torch.bool), mu, prompt=torch.arange(32) // 4)
    tokens = torch.zeros(32, 6, dtype=torch.long)
    assert collisions(LogpPairs(batch), tokens)["collisions/shared"] == 0
    few = tokens.clone()
    few[0, 3] = 1  # 3 of 48 pairs part at the fourth place, where by μ = 1/4 three quarters should
    assert collisions(LogpPairs(batch), few)["collisions/shared"] == 0
    parted = tokens.clone()
    parted[:, 3] = torch.arange(32) % 4
    found = collisions(LogpPairs(batch), parted)
    assert found["collisions/shared"] == 3 and found["collisions/shared_odds"] == pytest.approx(0.25**3)


def test_agreement_is_counted_only_behind_equal_tokens():
    mu = torch.full((2, 3), 0.25).double().log()
    batch = Batch(mu, torch.ones(2, 3, dtype=torch.bool), mu, prompt=torch.zeros(2, dtype=torch.long))
    found = collisions(LogpPairs(batch), torch.tensor([[0, 1, 2], [0, 3, 2]]))
    assert found["collisions/found"] == 0.5  # places 0 and 1; behind the second the responses have parted


def test_agreement_ends_where_an_environment_wrote_something_else():
    """Two turns with another tool answer between them: second turns have different prefixes. Equal answers keep the prefix."""
    mu = torch.full((2, 4), 0.25).double().log()
    mask = torch.tensor([[True, False, True, True], [True, False, True, True]])
    batch = Batch(mu, mask, mu, prompt=torch.zeros(2, dtype=torch.long))
    other, equal = torch.tensor([[0, 7, 2, 1], [0, 8, 3, 1]]), torch.tensor([[0, 7, 2, 1], [0, 7, 3, 1]])
    assert collisions(LogpPairs(batch), other)["collisions/found"] == 1.0  # the first token alone is compared
    assert collisions(LogpPairs(batch), equal)["collisions/found"] == 0.5
    longer = mask & torch.tensor([[True] * 4, [True, True, False, True]])
    assert collisions(LogpPairs(batch._replace(mask=longer)), equal)["collisions/found"] == 1.0


def test_without_ids_no_agreement_is_counted():
    """A trainer in BF16 gives one token another log π in another micro-batch, so equal numbers do not show equal tokens."""
    mu = torch.full((64, 2), 0.5).double().log()
    mu[1::2, 1] = math.log(0.4)
    batch = Batch(mu, torch.ones(64, 2, dtype=torch.bool), mu, prompt=torch.arange(64) // 4)
    found = collisions(LogpPairs(batch))
    assert math.isnan(found["collisions/z"]) and found["collisions/shared"] == 1


def test_whole_numbers_of_a_16_bit_column_are_no_fill():
    """BF16 has a number every 1/64 nats between -4 and -2, so about one token in 256 is -3 in a column spread over 4 nats."""
    mu = -4 * torch.rand(64, 100, generator=torch.Generator().manual_seed(0))
    pi = mu * (0.15 * torch.randn(64, 100, generator=torch.Generator().manual_seed(1))).exp()
    mask = torch.ones(64, 100, dtype=torch.bool)
    for dtype in (torch.bfloat16, torch.float16):
        found = values(LogpPairs(Batch(mu.to(dtype).float(), mask, pi.to(dtype).float())))
        assert math.isnan(found["values/rollout_fill"]) and math.isnan(found["values/trainer_fill"])
        filled = mu.to(dtype).float().index_fill(1, torch.tensor([50]), -1.0)
        assert values(LogpPairs(Batch(filled, mask, pi.to(dtype).float())))["values/rollout_fill"] == -1


def test_whole_numbers_of_a_rounded_column_are_no_fill():
    """Rounded to 2 decimals, 6400 tokens over 4 nats have 16 a number. Six Poisson deviates more and FEWEST: 16 + 24 + 3."""
    mu = -4 * torch.rand(64, 100, generator=torch.Generator().manual_seed(0)).double()
    pi = mu * (0.15 * torch.randn(64, 100, generator=torch.Generator().manual_seed(1))).exp()
    mask = torch.ones(64, 100, dtype=torch.bool)
    for decimals in (2, 3):
        rounded = Batch(mu.round(decimals=decimals), mask, pi)
        found = values(LogpPairs(rounded))
        assert math.isnan(found["values/rollout_fill"])
        filled = rounded.logp_rollout.index_fill(1, torch.tensor([50]), -1.0)  # 64 tokens
        assert values(LogpPairs(rounded._replace(logp_rollout=filled)))["values/rollout_fill"] == -1


def test_a_floor_that_is_no_whole_number_is_a_fill():
    """log π is even over 10 nats, and log μ too but for those below −6, which become −6.9: 40 % of the tokens."""
    pi = -10 * torch.rand(64, 100, generator=torch.Generator().manual_seed(0)).double()
    mask = torch.ones(64, 100, dtype=torch.bool)
    found = values(LogpPairs(Batch(torch.where(pi < -6, -6.9, pi), mask, pi)))
    assert found["values/rollout_fill"] == pytest.approx(-6.9)
    assert found["values/rollout_fill_share"] == pytest.approx(float((pi < -6).double().mean()))
    both = values(LogpPairs(Batch(pi.clamp(min=-6.9), mask, pi.clamp(min=-6.9))))
    assert math.isnan(both["values/rollout_fill"]) and math.isnan(both["values/trainer_fill"])


def test_the_profile_of_places():
    mu = torch.full((8, 12), 0.5)
    pi = mu.clone()
    pi[:, :4] = torch.tensor(1.0).sigmoid()  # logits 0 and 1
    found = places(paired(mu.tolist(), pi.tolist()))
    assert found["places/head"] == pytest.approx(1) and found["places/rest"] == pytest.approx(0)
    pi = pi.flip(1)  # the last four of twelve: from place 8 on
    pi[::2, :8] = torch.tensor(0.2).sigmoid()  # in every other response: an error needs some variance
    late = places(paired(mu.tolist(), pi.tolist()))
    assert (
        late["places/onset"] == 8
        and late["places/after"] == pytest.approx(1, rel=1e-5)
        and late["places/before"] == pytest.approx(0.02, rel=1e-5)
    )
    assert late["places/last"] == pytest.approx(abs(math.log(0.5) - math.log(torch.tensor(1.0).sigmoid())))


def test_the_tails():
    found = tails(paired([[0.95, 0.5], [0.95, 0.5]], [[0.95, 0.5], [0.4, 0.5]]))
    assert found["tails/sure"] == 0.5 and found["tails/flips"] == 0.5
    rho = 0.4 / 0.95
    assert found["tails/k3"] == pytest.approx((rho - 1 - math.log(rho)) / 4) and found["tails/top_share"] == 1
    assert tails(paired([[0.5] * 200], [[0.4] * 200]))["tails/top_share"] == pytest.approx(2 / 200)


def test_fill_values_and_constant_ends():
    mu, pi = drawn(4, 10), drawn(4, 10, seed=1)
    mu[:, -1] = 0.0
    found = values(LogpPairs(Batch(mu, torch.ones(4, 10, dtype=torch.bool), pi)))
    assert (
        found["values/rollout_fill"] == 0 and found["values/rollout_fill_share"] == 0.1 and found["values/rollout_fill_last"] == 1
    )
    pi = mu.clone()
    mu[:, :3] = pi[:, :3] = 0.0
    ends = values(LogpPairs(Batch(mu, torch.ones(4, 10, dtype=torch.bool), pi)))
    assert ends["values/head"] == 0.3 and ends["values/tail"] == 0 and math.isnan(ends["values/rollout_fill"])


def ending(lengths: list[int], width: int, certain: int) -> tuple[Batch, torch.Tensor]:
    """Responses of `lengths` sampled tokens and at least `certain` tokens (0, 0) after them, up to `width`; ids 0, 1, ..."""
    mu = drawn(len(lengths), width)
    place = torch.arange(width)[None]
    sampled = place < torch.tensor(lengths)[:, None]
    mask = place < torch.tensor([max(length + certain, 0 if certain else width) for length in lengths])[:, None]
    ids = (place - torch.tensor(lengths)[:, None] + 1).clamp(min=0)
    mu = torch.where(sampled, mu, 0.0)
    return Batch(mu, mask, mu), ids


def test_certain_endings_are_no_constant_run_but_padding_is():
    """Responses of 4, 6, 8 and 10 tokens with two certain ones behind end at 6 to 12: a variance of 5 with and without them.

    Filled up to 12 tokens all end at one place, and the run has 8 + 6 + 4 + 2 of 48 tokens.
    """
    sound, ids = ending([4, 6, 8, 10], 12, 2)
    for tokens in (None, ids, torch.zeros_like(ids)):
        assert values(LogpPairs(sound), tokens)["values/tail"] == 0
    padded, ids = ending([4, 6, 8, 10], 12, 0)
    for tokens in (None, ids.clamp(max=1)):
        assert values(LogpPairs(padded), tokens)["values/tail"] == pytest.approx(20 / 48)
    assert values(LogpPairs(padded), ids)["values/tail"] == 0  # padding repeats one token, and these are 1, 2, 3, ...


def test_equal_lengths_do_not_tell_padding_from_certain_endings_but_ids_do():
    """Four responses of six tokens with two certain ones behind: 8 of 32 tokens."""
    batch, ids = ending([6, 6, 6, 6], 8, 2)
    assert values(LogpPairs(batch))["values/tail"] == 8 / 32
    assert values(LogpPairs(batch), ids.clamp(max=1))["values/tail"] == 8 / 32
    assert values(LogpPairs(batch), ids)["values/tail"] == 0


def test_a_certain_common_beginning_is_no_prompt_if_ids_are_known():
    """Four responses begin with two certain tokens, 8 of 32: the same ids, as <think>, or ids that differ as prompts do."""
    mu, mask = drawn(4, 8), torch.ones(4, 8, dtype=torch.bool)
    mu[:, :2] = 0.0
    pairs, tokens = LogpPairs(Batch(mu, mask, mu)), torch.arange(8).expand(4, 8).clone()
    assert values(pairs)["values/head"] == 8 / 32 and values(pairs, tokens)["values/head"] == 0
    tokens[2:, 0] = 9
    assert values(pairs, tokens)["values/head"] == 8 / 32


def test_padding_is_seen_behind_certain_tokens_if_ids_are_known():
    """A tenth of the sampled tokens is certain. Their ids are not that of the padding."""
    batch, ids = ending([40, 60, 80, 100], 120, 0)
    mu = torch.where(torch.arange(120) % 10 == 0, 0.0, batch.logp_rollout)
    ids = ids.clamp(max=1) * 9
    found = values(LogpPairs(batch._replace(logp_rollout=mu, logp_old=mu)), ids)
    assert found["values/tail"] == pytest.approx(200 / 480) and found["values/tail_inside"] == 0
    assert values(LogpPairs(batch._replace(logp_rollout=mu, logp_old=mu)))["values/tail_inside"] == pytest.approx(0.1)


def test_a_number_that_no_sampler_draws_is_impossible_at_once():
    mu, pi = drawn(4, 10), drawn(4, 10)
    mu[0, 0] = -1e9
    found = values(LogpPairs(Batch(mu, torch.ones(4, 10, dtype=torch.bool), pi)))
    assert found["values/impossible"] == pytest.approx(1 / 40) and found["values/rollout_fill_share"] == 0


def test_a_fill_is_found_among_commoner_numbers():
    # nine log-probabilities occur ten times each, the floor three times
    mu = torch.cat([-torch.arange(1, 10).double().repeat(10) / 9.5, torch.full((3,), -20.0).double()])[None]
    pi = drawn(1, 93)
    found = values(LogpPairs(Batch(mu, torch.ones(1, 93, dtype=torch.bool), pi)))
    assert found["values/rollout_fill"] == -20 and found["values/rollout_fill_share"] == pytest.approx(3 / 93)


def test_the_log_ratio_that_follows_the_advantage():
    advantages = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
    mu = torch.full((4, 1), 0.5)
    found = drift(paired(mu.tolist(), (mu + 0.1 * advantages).tolist(), advantages=advantages))
    assert found["drift/correlation"] == pytest.approx(1)
    assert math.isnan(drift(paired(mu.tolist(), mu.tolist()))["drift/correlation"])


def test_a_log_ratio_that_only_grows_along_responses_follows_no_advantage():
    """Half of the responses are wrong and four times as long, and l falls with the place: their mean l is lower by the place."""
    mask = torch.arange(32) < torch.tensor([8, 32] * 16)[:, None]
    l = -0.01 * torch.arange(1, 33).log2().ceil().expand(32, -1).double()
    noise = 1e-3 * torch.tensor([1.0, 1.0, -1.0, -1.0] * 8)[:, None]  # does not depend on the advantage
    advantages = torch.tensor([1.0, -1.0] * 16)[:, None].expand(-1, 32)
    mu = torch.full((32, 32), -1.0, dtype=torch.float64)
    found = drift(LogpPairs(Batch(mu, mask, mu + l + noise, advantages, prompt=torch.arange(32) // 2)))
    assert found["drift/correlation"] == pytest.approx(0, abs=1e-9)


def test_every_statistic_is_a_number_and_padding_is_no_part_of_it():
    pi, mask = drawn(8, 12), torch.ones(8, 12, dtype=torch.bool)
    whole = statistics(Batch(pi, mask, pi + 0.01))
    wider = [torch.nn.functional.pad(part, (0, 3), value=math.nan) for part in (pi, pi + 0.01)]
    padded = statistics(Batch(wider[0], torch.nn.functional.pad(mask, (0, 3)), wider[1]))
    assert whole.keys() == padded.keys()
    assert all(padded[name] == pytest.approx(value, nan_ok=True) for name, value in whole.items())


def test_the_share_of_a_weight_that_is_its_cap():
    pairs = paired([[0.25, 0.5], [0.5, 0.5]], [[0.75, 0.5], [0.5, 0.25]])  # ρ = 3, 1 and 1, 1/2; products 3 and 1/2
    assert saturation(pairs, "token", 2) == 0.25 and saturation(pairs, "sequence", 2) == 0.5
