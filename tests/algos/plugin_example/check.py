"""Run where the package is installed: its entries are found by name, pass the conformance suite and train a policy."""

import functools

import torch

from algos.batch import Batch
from algos.conformance import check_advantage, check_filter, check_loss
from algos.corrections.apply import correct
from algos.corrections.spec import Correction, Plugin
from algos.objective import Objective
from algos.reductions import Counts
from algos.registry import ADVANTAGES, CORRECTIONS, LOSSES

assert "tempered_pg" in LOSSES.names() and "opening" in CORRECTIONS.names() and "median" in ADVANTAGES.names()
check_loss(LOSSES["tempered_pg"], {"temperature": 0.5})
check_filter(CORRECTIONS["opening"], {"bound": 0.5})
check_advantage(ADVANTAGES["median"], {}, {})

# One step on a bandit with three arms, the last of which is rewarded: its probability must grow.
logits = torch.zeros(3, requires_grad=True)
actions = torch.arange(3).repeat(4)
mask = torch.ones(12, 1, dtype=torch.bool)
advantages = ADVANTAGES["median"]((actions == 2).float().reshape(1, 12)).reshape(12, 1)
logp = logits.log_softmax(-1)[actions][:, None]
objective = Objective(
    functools.partial(LOSSES["tempered_pg"], temperature=0.5),
    Correction(reject={"opening": Plugin("opening", {"bound": 0.5})}),
    "old",
    "token_mean",
)
batch = Batch(logp.detach(), mask, logp.detach(), advantages)
corrected = correct(batch, objective.correction)
value, _ = objective(logp, batch, corrected, Counts.of(corrected.counted))
value.backward()
with torch.no_grad():
    after = (logits - logits.grad).softmax(-1)
assert after[2] > 1 / 3 > after[0], after
print("trained", after.tolist())
