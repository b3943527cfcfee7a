"""The held-out reward of a policy, with the same prompts and the same random numbers every time."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.build import Plan
from harness.errors import UserError
from harness.rollouts import RolloutEngine
from harness.rollouts.turns import respond
from harness.seeding import generator
from harness.train.probes import Probes
from harness.train.sampler import Sampler
from harness.train.scorer import Scorer


class Evaluator:
    """Judges any policy that can sample. prompts: [N, P], held out from training.

    Raises UserError if evaluation.prompts asks for more than there are.
    """

    def __init__(self, plan: Plan, sampler: Sampler, scorer: Scorer, prompts: Tensor):
        self.config, self.sampler, self.scorer = plan.config.evaluation, sampler, scorer
        if self.config.prompts > len(prompts):
            raise UserError(
                f"evaluation.prompts={self.config.prompts}: only {len(prompts)} prompts are held out; ask for no more"
            )
        self.prompts = prompts[: self.config.prompts].repeat_interleave(self.config.samples, dim=0)
        self.probes = Probes(plan, sampler, scorer)

    def judge(self) -> dict[str, float]:
        """eval/reward of the policy that `evaluation.policy` names; with "both" that of the trainer's own, and beside it
        eval/rollout_reward, eval/rollout_stderr and eval/gap = eval/reward − eval/rollout_reward.

        Both answer the same prompts by the same random numbers.
        """
        policy, engine = self.config.policy, self.sampler.engine
        metrics = self.reward_of(engine if policy == "rollout" else self.scorer.own_policy)
        if policy == "both":
            exact = self.scorer.policy is engine  # then the other policy is this one
            rollout = metrics.copy() if exact else self.reward_of(engine)
            metrics["eval/rollout_reward"], metrics["eval/rollout_stderr"] = rollout["eval/reward"], rollout["eval/stderr"]
            metrics["eval/gap"] = metrics["eval/reward"] - rollout["eval/reward"]
        return metrics

    def reward_of(self, policy: RolloutEngine) -> dict[str, float]:
        """eval/reward of a policy with the weights that it holds, and its standard error, clustered by prompt.

        With R_p the mean reward of the responses to prompt p, which are not independent, and R the mean of all P of them:
        stderr = √(Σ_p (R_p − R)² / (P (P − 1))).
        """
        sampler, share = self.sampler, self.sampler.ranks.share
        own = respond(policy, sampler.task, share(self.prompts), share(self._uniforms())).tokens
        reward = sampler.reward(self.prompts, sampler.ranks.gather(own)).cpu().double().numpy()
        by_prompt = reward.reshape(self.config.prompts, self.config.samples).mean(1)
        stderr = float(by_prompt.std(ddof=1)) / self.config.prompts**0.5
        return {"eval/reward": float(reward.mean()), "eval/stderr": stderr, "eval/samples": len(reward)}

    def probe(self, version: int) -> dict[str, float]:
        """The mismatch that other precisions would have for the actor's weights."""
        return self.probes.measure(version, self.prompts, self._uniforms())

    def _uniforms(self) -> Tensor:
        return torch.rand(len(self.prompts), self.sampler.task.answer_length, generator=generator(0, "evaluation"))
