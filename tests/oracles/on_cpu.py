"""What verl and SkyRL both need to compute on a CPU as they do on a GPU."""

import torch
from torch import Tensor


def softmax_in_fp32() -> None:
    """Have log_softmax compute in FP32, as it does under CUDA's autocast.

    The CPU's autocast leaves it in BF16, and log-probabilities would have 8 bits. On a GPU with flash-attn both trainers take
    its cross-entropy, which computes in FP32 too.
    """
    theirs = torch.nn.functional.log_softmax

    def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
        return theirs(input, dim, _stacklevel, dtype or torch.promote_types(input.dtype, torch.float32))

    torch.nn.functional.log_softmax = log_softmax
