"""The learning rate of each optimizer step: warm-up, then constant, linear, cosine or inverse square root."""

from __future__ import annotations

from collections.abc import Callable

import torch

from harness.config import Config


def learning_rates(config: Config) -> Callable[[int], float]:
    """Return the schedule: a function from the number of optimizer steps so far to the next step's learning rate.

    A rate of transformers' `get_scheduler` depends on the number of steps alone, so a resumed run has the same rates.
    """
    lr, schedule = config.actor.lr, config.actor.schedule
    if schedule.name == "constant" and not schedule.warmup_steps:
        return lambda updates: lr
    from transformers import get_scheduler  # imports peft, a fifth of a second that no other run needs

    name: str = schedule.name
    more: dict[str, float] = {}
    if schedule.min_lr_ratio:
        name, more = "cosine_with_min_lr", {"min_lr_rate": schedule.min_lr_ratio}
    elif name == "constant" and schedule.warmup_steps:
        name = "constant_with_warmup"
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=lr)  # get_scheduler asks for an optimizer, which nothing steps
    made = get_scheduler(
        name, optimizer, num_warmup_steps=schedule.warmup_steps, num_training_steps=config.updates, scheduler_specific_kwargs=more
    )
    (factor,) = made.lr_lambdas
    return lambda updates: lr * float(factor(updates))
