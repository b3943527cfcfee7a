"""vLLM on each kind of machine: what it computes, what it refuses, and which package of it a machine gets. Starts no engine."""

import contextlib
import re
from types import SimpleNamespace

import pytest
import torch

from faultline.tools.doctor import doctor
from harness.errors import UserError
from harness.rollouts import vllm as vllm_engine
from harness.rollouts import vllm_support
from harness.rollouts.vllm import VllmEngine
from harness.rollouts.vllm_support import can_sleep, kv_cache_refusal, slow_formats, weight_formats
from harness.validate import check
from tests.harness.rollouts.test_vllm import ENGINE, net, precision
from tests.machines import MACHINES

pytestmark = pytest.mark.vllm

NO, YES, SLOW = "no", "yes", "slow"
COMPUTES = {  # fp8_tensor, fp8_channel, fp8_block, fp8_block_w8a16, int8, FP8 cache
    "avx2": (NO, YES, NO, NO, NO, NO),
    "avx512": (NO, YES, NO, NO, YES, YES),
    "amx": (NO, SLOW, NO, YES, YES, YES),
    "amx_fp16": (NO, YES, NO, YES, YES, YES),
    "amx_fp8": (NO, YES, YES, NO, YES, YES),
    "gpu": (NO, NO, NO, NO, YES, NO),
    "gpu_fp8": (YES, YES, YES, NO, YES, YES),
}
"""By docs/vllm.md."""


@pytest.mark.parametrize("name", COMPUTES)
def test_what_a_machine_computes_follows_from_what_it_has(name, monkeypatch, capsys):
    monkeypatch.setattr(vllm_support, "this_machine", lambda: MACHINES[name])
    options = ["fp8_tensor", "fp8_channel", "fp8_block", "fp8_block_w8a16", "int8"]
    refusals, slow = weight_formats(), slow_formats()
    answers = [NO if refusals[option] else SLOW if option in slow else YES for option in options]
    assert (*answers, NO if kv_cache_refusal("fp8_e4m3", 32) else YES) == COMPUTES[name]
    assert refusals["fp32, bf16, fp16"] is None and can_sleep() == name.startswith("gpu")
    for option, answer in zip(options, answers, strict=True):
        if answer == NO:
            with pytest.raises(UserError, match=f"={option}: vLLM cannot compute in it here .*; it can in fp32, bf16"):
                VllmEngine.check(net().config, precision(option), "compute")
        with pytest.warns(match=f"rollout.precision={option}: .*slower") if answer == SLOW else contextlib.nullcontext():
            if answer != NO:
                VllmEngine.check(net().config, precision(option), "compute")
    doctor(parity=False)
    shown = dict(re.findall(r"^  (\w+): (yes|no|slow)", capsys.readouterr().out, re.M))
    assert [shown[option] for option in options] == answers


def test_a_head_that_cannot_be_halved_has_no_fp8_cache_on_a_cpu(monkeypatch):
    monkeypatch.setattr(vllm_support, "this_machine", lambda: MACHINES["avx512"])
    assert kv_cache_refusal("fp8_e4m3", 96) is None
    assert kv_cache_refusal("fp8_e4m3", 80) == "on a CPU head_dim must be divisible by 32, and it is 80"


@pytest.mark.parametrize("name", [name for name in COMPUTES if "gpu" not in name])
def test_vllm_itself_says_the_same_of_its_kernels(name, monkeypatch):
    """vLLM decides by torch's flags and by one operator of its own: given those of another CPU, it chooses what is said here."""
    from vllm import _custom_ops as ops
    from vllm.model_executor.kernels.linear.scaled_mm import cpu
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    machine = MACHINES[name]
    flags = {"avx512_f": machine.avx512, "amx_tile": machine.amx}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags)
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: True)
    monkeypatch.setattr(ops, "cpu_has_amx_fp8", lambda: machine.amx_fp8)
    monkeypatch.setattr(ops, "_supports_cpu_fp8_w8a16", "fp8_scaled_mm_cpu" in machine.kernels)
    monkeypatch.setattr(vllm_support, "this_machine", lambda: machine)
    w8a8, w8a16 = cpu.CPUFp8W8A8BlockScaledMMKernel.is_supported()[0], cpu.CPUFp8BlockScaledMMKernel.is_supported()[0]
    refusals = weight_formats()
    assert (refusals["fp8_block"] is None, refusals["fp8_block_w8a16"] is None) == (w8a8, w8a16 and not w8a8)
    for head_dim in (32, 48, 80, 128):
        try:
            _get_attn_isa(torch.bfloat16, 128, head_dim, "fp8_e4m3")
        except NotImplementedError:
            assert kv_cache_refusal("fp8_e4m3", head_dim)
        else:
            assert kv_cache_refusal("fp8_e4m3", head_dim) is None


@pytest.mark.parametrize("largest", [64, 127])
def test_sums_of_int8_products_of_full_range_are_exact_with_vnni_only(largest):
    """x·w of vLLM's oneDNN kernel. It adds 128 to x. Without VNNI two products are summed in 16 bits: 2 · 255 · 64 = 32,640 fits,
    and 2 · 255 · 127 = 64,770 does not."""
    from vllm import _custom_ops as ops

    machine = vllm_support.this_machine()
    if machine.gpu is not None:
        pytest.skip("needs a CPU")
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randint(-top, top + 1, (16, 128), generator=generator, dtype=torch.int8) for top in (127, largest))
    one = torch.ones(16, 1)  # the kernel keeps the address of its scales alone
    kernel = ops.create_onednn_scaled_mm(w.t(), one, torch.float32, True, False, 32)
    found = torch.empty(16, 16)
    ops.onednn_scaled_mm(kernel, x, found, one, None, None, None)
    assert torch.equal(found, x.float() @ w.float().t()) == (machine.vnni or largest == 64)


def test_a_run_is_refused_with_the_list_of_what_is_possible(tiny, monkeypatch):
    with pytest.raises(UserError, match=r"rollout.precision=nvfp4: vLLM cannot.*no such combination.*can in fp32, bf16"):
        check(tiny(ENGINE, "rollout/precision=nvfp4"))
    monkeypatch.setattr(vllm_support, "this_machine", lambda: MACHINES["avx512"])
    with pytest.raises(UserError, match=r"model.head_dim=16: vLLM's attention on a CPU takes 32, 64, "):
        check(tiny(ENGINE, "rollout/precision=bf16", "model.head_dim=16"))
    with pytest.raises(UserError, match=r"rollout.engine.colour: unknown; it takes kv_cache_gib, context"):
        check(tiny(ENGINE, "rollout/precision=bf16", "+rollout.engine.colour=red"))
    with pytest.raises(UserError, match=r"rollout.engine.context='abc': must be a whole number ≥ 1"):
        check(tiny(ENGINE, "rollout/precision=bf16", "rollout.engine.context=abc"))


def test_memory_that_a_cpu_engine_cannot_lend_is_refused(monkeypatch):
    monkeypatch.setattr(vllm_support, "this_machine", lambda: MACHINES["avx512"])
    with pytest.raises(UserError, match=r"rollout.engine.sleep=true: vLLM lends memory on a GPU only"):
        VllmEngine(net().config, precision("fp32"), sleep=True)


@pytest.mark.parametrize("used", [2, 26, 60])
def test_vllm_asks_for_its_kv_cache_only_where_others_use_the_gpu(used, monkeypatch):
    """vLLM's own check on 80 GiB, of which others hold some; with vLLM's default share of 0.92 the last two are refused."""
    from vllm.v1.worker.utils import request_memory

    free, total = (80 - used) * 2**30, 80 * 2**30
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, total))
    snapshot = SimpleNamespace(total_memory=total, free_memory=free, device_="cuda:0")
    assert request_memory(snapshot, SimpleNamespace(**vllm_engine._memory(20))) == 20 * 2**30
    refused = {"gpu_memory_utilization": 0.92} if used > 2 else vllm_engine._memory(79)
    with pytest.raises(ValueError, match="is less than desired GPU memory utilization"):
        request_memory(snapshot, SimpleNamespace(**refused))
