"""Twelve kills and signals at random moments, and the same command after each: every metric is that of undisturbed runs."""

import pytest

from tests.sweeps.signal_stress import Tally, send_signals


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_signals_change_no_metric_and_ask_for_no_hand(tmp_path):
    assert send_signals(tmp_path, count=12, seed=2026) == Tally()
