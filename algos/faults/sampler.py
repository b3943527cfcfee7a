"""Fault `sampler`: the tokens were drawn with probabilities that differ from the logged ones."""

from algos.diagnostics.evidence import Statistics
from algos.faults.base import NATS, SKYRL, SURE, TRL, VERL, VLLM, VLLM_MODE, Fault, beyond, or_both_bases
from algos.faults.truncated_sampling import ONE_SIDED

REPEATS = 0.005
"""Minimum difference in the share of repeated tokens that shows the fault: in BF16 π(S) is off by as much."""
DRAWN = 4.5
"""Minimum |z| that shows the fault; z compares how often samples of a prompt agree with the logged probabilities."""


def _surprised(s: Statistics) -> float | None:
    return beyond(abs(s["surprise/z"]) / SURE, abs(s["surprise/excess"]) / NATS)


def _repeated(s: Statistics) -> float | None:
    return beyond(abs(s["repeats/z"]) / SURE, abs(s["repeats/excess"]) / REPEATS)


def _agreed(s: Statistics) -> float | None:
    return beyond(abs(s["collisions/z"]) / DRAWN)


def _signature(s: Statistics) -> float | None:
    if s["identity/z"] <= -SURE and s["support/one_sided"] >= ONE_SIDED:
        return None  # the sampler's support is smaller: tokens are missing, and the others are drawn as logged
    return max(_repeated(s) or 0.0, _surprised(s) or 0.0, _agreed(s) or 0.0) or None


def _evidence(s: Statistics) -> str:
    if _repeated(s):
        expected = s["repeats/expected"]
        return (
            f"{expected + s['repeats/excess']:.1%} of the tokens are in their response already, and the trainer's probabilities "
            f"say {expected:.1%} (z {s['repeats/z']:.1f}): they were drawn with other probabilities, as by a penalty"
        )
    if _surprised(s):
        return (
            f"the tokens surprise the trainer by {s['surprise/expected'] + s['surprise/excess']:.2f} nats on average, and its "
            f"entropy is {s['surprise/expected']:.2f} (z {s['surprise/z']:.1f}): they were drawn with other probabilities"
            f"{or_both_bases(s)}"
        )
    return (
        f"two samples of a prompt agree at {s['collisions/found']:.1%} of the places, and the logged odds say "
        f"{s['collisions/expected']:.1%} (z {s['collisions/z']:.1f}): they were drawn with other probabilities{or_both_bases(s)}"
    )


FAULT = Fault(
    "sampler",
    "a",
    98,
    _signature,
    _evidence,
    {
        "vLLM": "presence_penalty, frequency_penalty, repetition_penalty, logit_bias, bad_words, structured_outputs and "
        "speculative_config; " + VLLM_MODE,
        "verl": "actor_rollout_ref.rollout.repetition_penalty, and rollout.logprobs_mode=processed_logprobs",
        "SkyRL": "generator.sampling_params.repetition_penalty and additional_kwargs",
        "TRL": "repetition_penalty, vllm_structured_outputs_regex and generation_kwargs",
        "prime-rl": "what extra_body adds to the sampling",
        "yours": "a filter that drops responses by what they say",
    },
    "critical",
    (VLLM, VERL, f"{SKYRL} config.py SamplingParams", f"{TRL} grpo_config.py"),
)
