"""The pictures of the study of the verdict show the numbers of its tables."""

import pandas as pd
import pytest

from experiments.verdict_picture import cost_figure, regret_figure
from experiments.verdict_study import costs


def test_rules_stand_in_the_order_of_the_trainers_loss_beside_their_means():
    shares = {("trainer", "v2"): (0.1, 0.3), ("trainer", "always token"): (0.0, 0.1), ("sampler", "v2"): (0.0, 0.02)}
    shares[("sampler", "always token")] = (0.2, 0.4)
    rows = [(*key, number, share) for key, pair in shares.items() for number, share in enumerate(pair)]
    axes = regret_figure(pd.DataFrame(rows, columns=["policy", "arm", "regime", "share"])).axes
    assert [label.get_text() for label in axes[0].get_yticklabels()] == ["always token", "v2: by K3, persistence and length"]
    assert [[text.get_text() for text in axis.texts] for axis in axes] == [["5.0%", "20.0%"], ["30.0%", "1.0%"]]


def run(source: str, policy: str, end: float, k3: float) -> dict:
    early = {"persistence_1": 0.0, "persistence_5": 0.0, "persistence_20": 0.0, "identity": 0.0, "gradient": 1.0, "ess": 1.0}
    return {"bed": "dense", "source": source, "arm": "none", "policy": policy, "start": 0.2, "end": end, "k3": k3} | (
        early | {"outcome": "survived", "onset": float("nan")}
    )


def test_a_cost_is_a_share_of_the_controls_gain():
    """The control goes from 0.2 to 0.7. An end of 0.6 costs 0.1 of a gain of 0.5; one of 0.45 costs half of it."""
    runs = [run("exact", policy, 0.7, 0.0) for policy in ("trainer", "sampler")]
    runs += [run("int8", policy, 0.6, 1e-3) for policy in ("trainer", "sampler")]
    runs += [run("fixed_0.4", policy, 0.45, 1e-1) for policy in ("trainer", "sampler")]
    figure = cost_figure({policy: costs(pd.DataFrame(runs), policy) for policy in ("trainer", "sampler")})
    assert figure.get_suptitle() == "Number formats cost at most 20%, synthetic noise cost at most 50% of the gain, in the mean"
    for axis in figure.axes:
        drawn = {line.get_label(): list(line.get_ydata()) for line in axis.lines}
        assert drawn["number formats"] == pytest.approx([0.2]) and drawn["synthetic noise"] == pytest.approx([0.5])
        assert axis.get_title(loc="left").endswith("rank correlation 1.00 over 2 regimes")
