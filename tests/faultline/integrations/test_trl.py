"""TRL's hook as its docstring and the page of the replay show it. With TRL itself: tests/oracles/test_integrations.py."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from faultline.integrations import trl
from harness.errors import UserError


@pytest.mark.parametrize("text", [trl.__doc__, Path("docs/replay.md").read_text()], ids=["docstring", "page"])
def test_the_import_that_is_shown_has_the_hook(text):
    """The line stands there once, runs without TRL, and gives the function that the next line calls."""
    (line,) = [line.strip() for line in text.splitlines() if line.strip().startswith("from faultline.integrations.trl")]
    names: dict[str, object] = {}
    exec(line, names)
    assert names["record"] is trl.record and '\n    record(trainer, "dump"' in text.replace("\nrecord", "\n    record")
    with pytest.raises(UserError, match=r"set use_vllm=True in GRPOConfig"):
        names["record"](SimpleNamespace(use_vllm=False), "dump")


def test_a_diagnosis_has_the_advantages_and_entropies(monkeypatch):
    """TRL has one advantage per response where the hook reads them: 0.5 and -0.5 for two responses of three tokens."""
    seen = []
    monkeypatch.setattr(trl, "print_diagnosis", lambda *arguments: seen.append(arguments))
    logps, ones = -torch.ones(2, 3), torch.ones(2, 3, dtype=torch.long)
    out = {"sampling_per_token_logps": logps, "old_per_token_logps": logps, "completion_mask": ones, "completion_ids": ones}
    out |= {"prompt_ids": ones, "prompt_mask": ones, "advantages": torch.tensor([0.5, -0.5])}
    model = SimpleNamespace(training=True)
    trainer = SimpleNamespace(use_vllm=True, model=model, num_generations=2, _step=0, state=SimpleNamespace(global_step=0))
    trainer.accelerator = SimpleNamespace(process_index=0, num_processes=1)
    trainer._get_per_token_logps_and_entropies = lambda model, compute_entropy=False: (logps, 0.7 * torch.ones(2, 3))

    def generate(inputs):
        trainer._get_per_token_logps_and_entropies(model)
        return out

    trainer._generate_and_score_completions = generate
    trl.record(trainer, diagnose=1)
    trainer._generate_and_score_completions([{}, {}])
    ((program, step, batch, _, entropy),) = seen
    assert (program, step) == ("TRL", 0) and batch.advantages.tolist() == [[0.5] * 3, [-0.5] * 3]
    assert batch.prompt.tolist() == [0, 0] and entropy.unique().tolist() == pytest.approx([0.7])
