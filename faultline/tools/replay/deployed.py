"""The correction to train with if the trainer's or the sampler's policy is deployed, by the rules tested in docs/decision.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.statistics.rules import Cutoffs, Seen
from faultline.tools.replay.persistence import LAG, Lasting
from faultline.tools.replay.settings import arm_settings
from faultline.tools.replay.verdict import Deployed, Verdict

WORDS = {
    "none": "no correction",
    "token": "truncate token weights at 2",
    "sequence": "truncate sequence weights at 2",
    "mask": "mask sequences above 2",
    "geometric": "reject by the geometric mean, and mask tokens above 2",
}
"""Name of a correction in the study of docs/decision.md -> the correction in words."""
PLAIN = {
    "none": "no correction",
    "token": "token truncation",
    "sequence": "sequence truncation",
    "geometric": "band, token mask",
}
"""Fixed choice that stands beside a rule -> its words. They are the corrections that a user would set without a rule."""
CONSTANT = "best constant"
"""Name of the rule that proposes one correction whatever the dump shows."""


def answers(verdict: Verdict, lasting: Lasting, frozen: Mapping[str, Any], policies: Sequence[str]) -> list[Deployed]:
    """The correction to train with for each of `policies` (trainer, sampler), if that policy is to be deployed.

    frozen: the rules that choose it (`records.verdict`). lasting: persistence of the mismatch. A rule may be undecided if the
    persistence is unknown, or measured at a lag far from the rule's own. The field `arm`, a correction's name, is None if the
    rule is undecided, or if the dump is unfit for an answer.
    """
    return [_answer(verdict, lasting, frozen[policy], policy) for policy in policies]


def _answer(verdict: Verdict, lasting: Lasting, frozen: Mapping[str, Any], policy: Any) -> Deployed:
    name = frozen["chosen"]
    lost = {what: _lost(frozen, f"always {arm}") for arm, what in PLAIN.items()}
    study = {"measured": _measured(frozen, name, lost), "regimes": frozen["regimes"], "lost": lost}
    if not verdict.answerable:
        return Deployed(policy=policy, rule=name, arm=None, text="no correction is proposed", settings={}, **study)
    if name == CONSTANT:
        arm: str | None = frozen["best"]
        text = WORDS[frozen["best"]]
    else:
        rule = Cutoffs(**frozen["v2"])
        known = (0.0, 1.0) if lasting.known is None else (lasting.known,)
        arms = {rule(Seen(verdict.mismatch.k3, value, verdict.dump.mean_tokens, "none")) for value in known}
        arm = arms.pop() if len(arms) == 1 else None
        text = WORDS[arm] if arm else f"undecided: the rule asks whether the error stays over {LAG} syncs, and {lasting.why}"
    settings = arm_settings(arm) if arm not in (None, "none") else {}
    return Deployed(policy=policy, rule=name, arm=arm, text=text, settings=settings, **study)


def _lost(frozen: Mapping[str, Any], name: str) -> tuple[float, float]:
    """What the rule `name` lost in the study, mean and worst, as shares of what RL gains without mismatch."""
    score = frozen["scores"][name]
    return score["mean"], score["worst"]


def _measured(frozen: Mapping[str, Any], name: str, lost: Mapping[str, tuple[float, float]]) -> str:
    """What a rule that chooses a correction lost in the study (docs/decision.md), and what the other fixed choices of PLAIN lost.

    frozen: the rules for one deployed policy, from `records.verdict`. name: name of the rule. lost: that of the fixed choices.
    """
    own = _lost(frozen, name)
    others = [f"{what} {mean:.0%}, {worst:.0%}" for what, (mean, worst) in lost.items() if (mean, worst) != own]
    return (
        f"In {frozen['regimes']} new toy regimes it lost {own[0]:.0%} of RL's gain to the best, {own[1]:.0%} at worst. "
        f"Beside it: {'; '.join(others)}."
    )
