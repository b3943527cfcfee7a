"""Tasks with a verifier. `chain` is embedded and has tokens of its own; `gsm8k`, `jsonl` and `arithmetic` are text and need a
tokenizer.

A task is made by `TASKS[name](config, tokenizer)`, where config is the config's `task` (a plug-in's own keys are in
`config.params`) and tokenizer that of `model=hub`, else None. It has:

    prompts()                 every prompt, [N, P] int64, padded with PAD on the left
    answer_length             the most tokens of an answer
    stop                      tokens that end an answer, () if all have answer_length tokens
    reward(prompts, answers)  [B, P], [B, T] with PAD after the end -> float64 [B], 0 to 1
    segments(answers)         [B, T] -> int64 [B, T], 0 ≤ id < T: the turn of each token, for corrections of level segment; of
                              tasks that have turns
    train, held_out           with model=hub: prompts for RL and for evaluation
    vocab_size, demonstrations(prompts, rng)  with model=qwen3: for the warm start, which also divides the prompts
    counts                    what to tell of how the prompts were made, name -> number
"""

from __future__ import annotations

from algos.registry import Registry

PAD = -1
"""Where a shorter prompt has nothing yet, and a shorter answer nothing more."""

TASKS = Registry(
    "tasks",
    {
        "chain": "harness.tasks.chain:Chain",
        "gsm8k": "harness.tasks.gsm8k:Gsm8k",
        "jsonl": "harness.tasks.text:Jsonl",
        "arithmetic": "harness.tasks.arithmetic:Sums",
    },
)
