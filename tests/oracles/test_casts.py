"""Casts, against compressed-tensors, by which vLLM reads quantised models, and against torchao."""

import torch

from harness.rollouts import casts


def test_casts_agree_with_compressed_tensors():
    """NVFP4's codes and scales; vLLM installs that package."""
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    x = torch.randn(16, 128, generator=torch.Generator().manual_seed(5))
    blocks = x.unflatten(-1, (-1, casts.NVFP4_BLOCK))
    nvfp4 = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=casts.NVFP4_BLOCK, symmetric=True)
    whole = generate_gparam(x.amin(), x.amax())  # 448·6/max|x|, the inverse of our scale
    scale, zero = calculate_qparams(blocks.amin(-1), blocks.amax(-1), nvfp4, global_scale=whole)
    product, ours = casts.quantize_nvfp4(x)
    theirs = fake_quantize(x, scale.to(torch.float8_e4m3fn).float(), zero, nvfp4, global_scale=whole)
    # It multiplies by an inverse scale, so fp32 may tip a code, by a spacing, or a block scale, by 2⁻³.
    assert (product * ours - theirs).abs().gt(1e-5).float().mean() < 0.01


def test_mxfp4_agrees_with_torchao():
    from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_dtype, to_mx

    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(6))
    scale, codes = to_mx(x, torch.float4_e2m1fn_x2, 32, ScaleCalculationMode.FLOOR)
    theirs = to_dtype(codes, scale, torch.float4_e2m1fn_x2, 32, torch.float32)
    assert torch.equal(casts.quantize_mxfp4(x), theirs)
