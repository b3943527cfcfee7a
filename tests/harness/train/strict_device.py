"""A device that a machine without a GPU can test on: tensors marked as lying there, which do not mix with the CPU's.

Under `Elsewhere` a tensor that is made on DEVICE, or computed from one that is, carries a mark. What a GPU refuses raises here
too: an operation on tensors of both places, an index on DEVICE into a tensor of the CPU, and `numpy()` of what lies on DEVICE.
The numbers are the CPU's.
"""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("cuda")
MARK = "_elsewhere"
MIXING = {"copy_", "to", "cpu", "type_as"}
"""Functions that take tensors of both places."""


class Mixed(RuntimeError):
    """Raised for an operation that a GPU would refuse."""


def put(value):
    """A copy of every tensor in `value` on DEVICE."""
    return tree_map(lambda x: _marked(x.clone()) if isinstance(x, torch.Tensor) else x, value)


def take(value):
    """Every tensor in `value`, as one of the CPU."""
    return tree_map(lambda x: x.view_as(x) if isinstance(x, torch.Tensor) else x, value)


def lies_there(x) -> bool:
    """Whether `x` is a tensor on DEVICE."""
    return isinstance(x, torch.Tensor) and getattr(x, MARK, False)


class Elsewhere(TorchFunctionMode):
    """Marks, and refuses to mix."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if func == torch.Tensor.device.__get__:
            return DEVICE if lies_there(args[0]) else func(*args)
        if func == torch.Tensor.is_cuda.__get__:
            return lies_there(args[0])
        if func == torch.Tensor.data.__set__:
            setattr(args[0], MARK, lies_there(args[1]))
            return func(*args)
        if name in ("numpy", "__array__") and lies_there(args[0]):
            raise Mixed("can't convert a tensor of the GPU to numpy; use cpu() first")
        if name in ("to", "cpu"):
            return self._moved(func, args, kwargs)
        wanted = kwargs.get("device")
        if wanted is not None and torch.device(wanted).type == DEVICE.type:
            kwargs["device"] = torch.device("cpu")
            return _mark_all(func(*args, **kwargs))
        if name not in MIXING:
            _refuse_mixture(name, args, kwargs)
        out = func(*args, **kwargs)
        here = wanted is not None and torch.device(wanted).type == "cpu"
        return _mark_all(out) if not here and any(map(lies_there, tree_leaves((args, kwargs)))) else out

    def _moved(self, func, args, kwargs):
        """`to` and `cpu`, which alone change the place."""
        source, wanted = args[0], [*args[1:], *kwargs.values()]
        there = lies_there(source)
        for value in wanted:
            if isinstance(value, (str, torch.device)):
                there = torch.device(value).type == DEVICE.type
            elif isinstance(value, torch.Tensor):
                there = lies_there(value)
        there = there and func.__name__ != "cpu"
        cpu = torch.device("cpu")
        args = [cpu if isinstance(value, (str, torch.device)) else value for value in args]
        out = func(*args, **{key: cpu if key == "device" else value for key, value in kwargs.items()})
        moved = there != lies_there(source)
        return _marked(out.clone() if moved else out, there)


def _refuse_mixture(name: str, args, kwargs) -> None:
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    there = [lies_there(x) for x in tensors]
    if all(there) or not any(there):
        return
    if name in ("__getitem__", "__setitem__"):  # an index may lie on the CPU, a value to be put by an index of tensors may not
        index = [x for x in tree_leaves(args[1]) if isinstance(x, torch.Tensor)]
        value = args[2] if name == "__setitem__" else None
        strange = isinstance(value, torch.Tensor) and value.ndim and lies_there(value) != lies_there(args[0])
        if not (strange and index) and not (any(map(lies_there, index)) and not lies_there(args[0])):
            return
    elif all(x.ndim == 0 for x, far in zip(tensors, there, strict=True) if not far):
        return  # a number of the CPU goes with anything
    raise Mixed(f"{name}: tensors of the GPU and of the CPU, {[tuple(x.shape) for x in tensors]}")


def _marked(x: torch.Tensor, there: bool = True) -> torch.Tensor:
    setattr(x, MARK, there)
    return x


def _mark_all(value):
    return tree_map(lambda x: _marked(x) if isinstance(x, torch.Tensor) else x, value)
