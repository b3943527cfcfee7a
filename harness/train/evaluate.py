"""Evaluation of policies by their held-out reward, always with the same prompts and the same random numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
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


class Question(NamedTuple):
    """Split of prompts that are evaluated (held_out or train), and policy that answers them: own (the trainer's) or rollout."""

    split: str
    policy: str


class Evaluator:
    """Evaluates policies on held-out prompts [N, P], and measures the mismatch of the precisions in evaluation.probe.

    Raises UserError if there are fewer prompts than the config asks for.
    """

    def __init__(self, plan: Plan, sampler: Sampler, scorer: Scorer, prompts: Tensor):
        self.config, self.sampler, self.scorer = plan.config.evaluation, sampler, scorer
        self.prompts = self._asked("prompts", self.config.prompts, prompts, "are held out")
        self.train_prompts = self._asked("train_prompts", self.config.train_prompts, sampler.prompts, "are trained on")
        self.probes = Probes(plan, sampler, scorer)

    def _asked(self, key: str, number: int, prompts: Tensor, there: str) -> Tensor:
        """Return the first `number` prompts, each evaluation.samples times, [N, P]. key, there: words of the error if too few."""
        if number > len(prompts):
            raise UserError(f"evaluation.{key}={number}: only {len(prompts)} prompts {there}; ask for no more")
        return prompts[:number].repeat_interleave(self.config.samples, dim=0)

    def judge(self) -> tuple[dict[str, float], dict[Question, np.ndarray]]:
        """Return (metrics of an evaluation, dict from split and policy to the mean reward of each prompt [prompts] fp64).

        eval/reward is the reward of the policy that `evaluation.policy` names. With "both" it is that of the trainer's own
        policy. The rollout policy's is then eval/rollout_reward, with eval/rollout_stderr, and eval/gap = eval/reward −
        eval/rollout_reward. eval/train_reward and eval/train_rollout_reward are rewards on training prompts. Both policies
        answer the same prompts with the same random numbers.
        """
        policy, engine = self.config.policy, self.sampler.engine
        first = "rollout" if policy == "rollout" else "own"
        judged = {first: engine if policy == "rollout" else self.scorer.own_policy}
        if policy == "both":
            judged["rollout"] = engine
        exact = self.scorer.policy is engine  # then both policies are the same
        asked = {"held_out": self.prompts} | ({"train": self.train_prompts} if len(self.train_prompts) else {})
        answers: dict[Question, np.ndarray] = {}
        for split, prompts in asked.items():
            for name, one in judged.items():
                known = answers.get(Question(split, first)) if exact else None
                answers[Question(split, name)] = self.rewards_of(one, prompts) if known is None else known
        metrics = summary(answers[Question("held_out", first)])
        if "train" in asked:
            metrics["eval/train_reward"] = mean(answers[Question("train", first)])
        if policy == "both":
            rollout = summary(answers[Question("held_out", "rollout")])
            metrics["eval/rollout_reward"], metrics["eval/rollout_stderr"] = rollout["eval/reward"], rollout["eval/stderr"]
            metrics["eval/gap"] = metrics["eval/reward"] - rollout["eval/reward"]
            if "train" in asked:
                metrics["eval/train_rollout_reward"] = mean(answers[Question("train", "rollout")])
        return metrics, {question: rewards.mean(1) for question, rewards in answers.items()}

    def rewards_of(self, policy: RolloutEngine, prompts: Tensor) -> np.ndarray:
        """Reward of each response of a policy with its present weights, [prompts, samples] fp64."""
        sampler, share = self.sampler, self.sampler.ranks.share
        own = respond(policy, sampler.task, share(prompts), share(self._uniforms(prompts))).tokens
        reward = sampler.reward(prompts, sampler.ranks.gather(own)).cpu().double().numpy()
        return reward.reshape(-1, self.config.samples)

    def probe(self, version: int) -> dict[str, float]:
        """Mismatch metrics of the precisions in evaluation.probe, each from an engine that samples with the actor's weights."""
        return self.probes.measure(version, self.prompts, self._uniforms(self.prompts))

    def _uniforms(self, prompts: Tensor) -> Tensor:
        return torch.rand(len(prompts), self.sampler.task.answer_length, generator=generator(0, "evaluation"))


def summary(rewards: np.ndarray) -> dict[str, float]:
    """Mean of rewards [P, samples], its standard error clustered by prompt, and the number of samples, as `eval/` metrics.

    Responses to one prompt are not independent. With R_p the mean reward of prompt p, and R the mean over all P prompts:
    stderr = √(Σ_p (R_p − R)² / (P (P − 1))).
    """
    stderr = float(rewards.mean(1).std(ddof=1)) / len(rewards) ** 0.5
    return {"eval/reward": mean(rewards), "eval/stderr": stderr, "eval/samples": rewards.size}


def mean(rewards: np.ndarray) -> float:
    """Mean of all rewards [P, samples], for P prompts with `samples` responses each."""
    return float(rewards.ravel().mean())
