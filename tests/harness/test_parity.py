"""`faultline doctor`: the table of this machine, complete and normal; and that it tells when something is off."""

import pytest

from faultline.tools.doctor import doctor
from harness import parity
from harness.errors import UserError
from harness.rollouts.local import LocalEngine
from harness.rollouts.vllm_support import kv_cache_refusal, weight_formats

pytestmark = pytest.mark.vllm


def test_actor_local_engine_and_vllm_agree_as_is_normal(capsys):
    doctor(parity=True)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines() if "│" in line]
    pairs = {(precision, cache, pair): [float(n) for n in (mean, largest)] for precision, cache, pair, mean, largest, *_ in rows}
    assert {row[-1] for row in rows} == {"normal"}
    for precision, cache in parity.NORMAL:
        refused = weight_formats().get(precision) or (kv_cache_refusal(cache, 32) if cache != "compute" else None)
        assert ((precision, cache, "actor – vllm") in pairs) == (refused is None)
        assert (precision, cache, "actor – local") in pairs
        assert ((precision, cache, "local – vllm") in pairs) == (refused is None)
    assert all(pairs["fp32", "compute", pair][1] <= 1e-5 for pair in ("actor – local", "actor – vllm", "local – vllm"))


def test_a_pair_that_is_off_is_named(capsys, monkeypatch):
    """A local engine with two layers exchanged."""
    monkeypatch.setattr(parity, "NORMAL", {("fp32", "compute"): 1e-5})
    load = LocalEngine.load_weights

    def wrong(self, weights, version):
        load(self, weights, version)
        self.layers[1], self.layers[2] = self.layers[2], self.layers[1]

    monkeypatch.setattr(LocalEngine, "load_weights", wrong)
    with pytest.raises(UserError, match=r"further apart than is normal: fp32 actor – local, fp32 local – vllm"):
        doctor(parity=True)
    assert "OFF" in capsys.readouterr().out
