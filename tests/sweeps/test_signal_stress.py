"""Six kills and signals at random moments, and the same command after each: every metric is that of undisturbed runs."""

import random

import pytest

from tests.sweeps.signal_stress import VICTIMS, Tally, drawn, send_signals

COUNT, SEED = 6, 2026


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_signals_change_no_metric_and_ask_for_no_hand(tmp_path):
    """Each kind is among them."""
    assert set(drawn(COUNT, random.Random(SEED))) == set(VICTIMS)
    assert send_signals(tmp_path, COUNT, SEED) == Tally()
