"""What README.md says of the three trainers, against their sources: which log-probabilities vLLM logs, and what reads them."""

from pathlib import Path

import pytest
import skyrl
import trl
import verl

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def row(trainer: str) -> list[str]:
    """The cells of a trainer's row in the table of who is hit."""
    (line,) = [line for line in README.splitlines() if line.startswith(f"| {trainer}, another temperature |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def sources(package) -> dict[str, str]:
    root = Path(package.__path__[0])
    return {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in root.rglob("*.py")}


def test_verl_asks_for_processed_ones_unless_told_otherwise():
    config = (Path(verl.__path__[0]) / "trainer/config/rollout/rollout.yaml").read_text()
    assert "\nlogprobs_mode: processed_logprobs\n" in config and "\ntemperature: 1.0\n" in config and "\ntop_p: 1\n" in config
    assert row("verl 0.9.1")[1] == "`logprobs_mode=raw_logprobs`; 0.6.1 always"
    assert row("verl 0.9.1")[3] == "`actor_rollout_ref.rollout.logprobs_mode=processed_logprobs`"


def test_skyrl_has_no_mode_of_its_own_and_three_ways_to_read_what_is_logged():
    """Without the key vLLM's default stays. The losses whose ratio has vLLM's numbers, beside the corrections."""
    files = sources(skyrl)
    assert not any("logprobs_mode" in text for text in files.values())
    (losses,) = [text for name, text in files.items() if name.endswith("skyrl_train/utils/ppo_utils.py")]
    ratios = [part for part in losses.split("@register_policy_loss(")[1:] if "log_probs - rollout_logprobs" in part]
    assert [part.partition(")")[0] for part in ratios] == ["PolicyLossType.ROLLOUT_IS"]
    (dppo,) = [part for part in losses.split("@register_policy_loss(")[1:] if part.startswith("PolicyLossType.DPPO)")]
    assert "mu_log_probs = rollout_logprobs if" in dppo and "log_probs - mu_log_probs" in dppo
    said = "`off_policy_correction`, or the loss `rollout_is` or `dppo`"
    assert row("SkyRL 0.3.0")[1:3] == ["always, without the fix", said]


def test_trl_asks_for_processed_ones_and_reads_them_by_default():
    files = sources(trl)
    assert 'logprobs_mode="processed_logprobs"' in files["generation/vllm_generation.py"]
    trainer, config = files["trainer/grpo_trainer.py"], files["trainer/grpo_config.py"]
    assert "if self.use_vllm and self.vllm_importance_sampling_correction" in trainer
    assert "vllm_importance_sampling_correction: bool = field(\n        default=True" in config
    assert 'if logprobs_mode != "processed_logprobs":' in trainer  # the warning of a server
    assert row("TRL 1.16")[1:3] == ["a plain `vllm serve`; TRL warns", "by default: `vllm_importance_sampling_correction`"]


@pytest.mark.parametrize("trainer", ["SkyRL 0.3.0", "verl 0.9.1", "TRL 1.16"])
def test_the_versions_are_those_that_were_read(trainer):
    name, version = trainer.split()
    found = {path.name for path in Path(trl.__path__[0]).parent.glob("*.dist-info")}
    assert any(info.startswith(f"{name.lower()}-{version}") for info in found)
