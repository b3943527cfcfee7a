"""verl's hook without verl. With verl itself: tests/oracles/test_integrations.py."""

from types import SimpleNamespace

import torch

from faultline.integrations import verl


def test_a_diagnosis_has_the_advantages_of_a_batch_that_has_them(monkeypatch):
    """verl's own trainers call the hook before they compute advantages; another trainer may call it later."""
    seen = []
    monkeypatch.setattr(verl, "print_diagnosis", lambda *arguments: seen.append(arguments))
    ones = torch.ones(2, 3)
    tensors = {"response_mask": ones, "old_log_probs": -ones, "rollout_log_probs": -ones}
    for more in ({}, {"advantages": 0.5 * ones, "entropys": ones, "responses": ones.long()}):
        verl.diagnose(SimpleNamespace(batch=tensors | more, non_tensor_batch={}), 3)
    (_, _, bare, *none), (_, _, whole, tokens, entropy) = seen
    assert bare.advantages is None and none == [None, None]
    assert torch.equal(whole.advantages, 0.5 * ones) and tokens is not None and entropy is not None
