"""GEPO's weight in a run, and in the replay of its dump."""

import math
from collections import defaultdict

import pytest
import torch

from faultline.tools.replay.collect import collect
from faultline.tools.replay.presets import presets
from faultline.tools.replay.sources import Dump
from harness.errors import UserError
from harness.validate import check
from tests.harness.train.test_trainer import folder_of, stepped


def test_a_run_weighs_by_whole_groups_and_its_replay_agrees(tiny):
    """Two mini-batches at random part the groups; the weights are those of a loop over the dump's own log-probabilities.

    Cross entropy, so that there is a gradient to weigh whatever the rewards.
    """
    shared = ["rollout/precision=nvfp4", "loss=cross_entropy", "actor.num_minibatches=2", "dump.every=1", "steps=1"]
    config = tiny(*shared, "correction=gepo")
    metrics, weights = stepped(config)
    (path,) = (folder_of(config).path / "dumps").iterdir()
    (batch,) = Dump(path).batches()
    rows = [slice(*ends) for ends in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)]
    pi, mu = ([math.exp(logp[row].astype(float).mean()) for row in rows] for logp in (batch.logp_old, batch.logp_rollout))
    groups = defaultdict(list)
    for number, q in zip(batch.group, mu, strict=True):
        groups[number].append(q)
    assert sorted(map(len, groups.values())) == [4, 4, 4, 4]
    expected = [p * sum(groups[g]) / sum(q * q for q in groups[g]) for p, g in zip(pi, batch.group, strict=True)]
    tokens = [row.stop - row.start for row in rows]
    mean = sum(w * n for w, n in zip(expected, tokens, strict=True)) / sum(tokens)
    assert metrics["correction/weight_mean"] == pytest.approx(mean, rel=1e-5) and abs(mean - 1) > 0.01
    found = collect(Dump(path), {"gepo": presets(["gepo"])["gepo"].correction}).corrections
    assert float(found["correction/weight_mean"].item()) == pytest.approx(metrics["correction/weight_mean"], rel=1e-12)
    uncorrected = stepped(tiny(*shared))[1]
    assert any(not torch.equal(weights[name], w) for name, w in uncorrected.items())


def test_parts_of_groups_are_refused(tiny):
    with pytest.raises(UserError, match=r"correction.ratio=current with weight.level=group: .* use ratio=old"):
        tiny("correction=gepo", "correction.ratio=current", "loss=pg")
    alone = tiny("correction=gepo", "actor.scoring=none", "loss=pg", "evaluation.policy=rollout")
    with pytest.raises(UserError, match=r"actor\.scoring=none: .*use actor\.scoring=exact"):
        check(alone)
