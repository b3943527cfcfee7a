"""The head in chunks: log-probability, entropy and gradients of the plain computation, and the memory of one chunk."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Gemma2Config, Gemma2ForCausalLM

from harness.errors import UserError
from harness.models import build
from harness.train.model import head
from harness.train.model.head import ScoringHead, ScoringModel
from tests.harness.train.model.test_actor import SHAPE

N, HIDDEN, VOCABULARY = 24, 16, 101


def inputs(dtype=torch.float32):
    """Hidden states, a head of sharp distributions, targets, and the gradient of the log-probabilities."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, N // 2, HIDDEN, generator=generator).to(dtype).requires_grad_()
    weight = torch.nn.Parameter(torch.randn(VOCABULARY, HIDDEN, generator=generator).to(dtype))
    targets = torch.randint(0, VOCABULARY, (2, N // 2), generator=generator)
    return hidden, weight, targets, torch.randn(2, N // 2, generator=generator)


def plain(hidden, weight, targets, temperature):
    """The definition, by autograd, in fp64."""
    logp = ((hidden @ weight.t()).double() / temperature).log_softmax(-1)
    return logp.gather(-1, targets[..., None])[..., 0], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("chunk", [1, 5 * VOCABULARY, 2**24], ids=["a place", "5 places", "all"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_are_those_of_the_definition(temperature, chunk, monkeypatch):
    monkeypatch.setitem(head.CHUNK, "cpu", chunk)
    hidden, weight, targets, of_logp = inputs()
    logp, entropy = ScoringHead(weight, temperature)(hidden, targets)
    expected_logp, expected_entropy = plain(hidden.double(), weight.double(), targets, temperature)
    assert logp.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logp.double(), expected_logp, atol=2e-6, rtol=1e-6)
    torch.testing.assert_close(entropy.double(), expected_entropy, atol=2e-6, rtol=1e-6)
    of_entropy = torch.linspace(-1, 2, N).view(2, -1)
    for of_both in ((of_logp, 0 * of_logp), (of_logp, of_entropy), (0 * of_logp, of_entropy)):
        ours = torch.autograd.grad((of_both[0] * logp + of_both[1] * entropy).sum(), [hidden, weight], retain_graph=True)
        expected = (of_both[0] * expected_logp + of_both[1] * expected_entropy).sum()
        for a, b in zip(ours, torch.autograd.grad(expected, [hidden, weight], retain_graph=True), strict=True):
            assert (a - b).norm() < 2e-6 * b.norm()
    for one, other in ((logp, expected_logp), (entropy, expected_entropy)):  # the gradient of the other is not asked for
        ours, theirs = (torch.autograd.grad(part.sum(), weight, retain_graph=True)[0] for part in (one, other))
        assert (ours - theirs).norm() < 2e-6 * theirs.norm()


def test_weights_of_16_bit_have_gradients_that_add_up_in_fp32(monkeypatch):
    """24 chunks: their sum in bf16 would lose up to 24 roundings of 2^-9, against one when it is rounded at its end."""
    monkeypatch.setitem(head.CHUNK, "cpu", 1)
    hidden, weight, targets, of_logp = inputs(torch.bfloat16)
    logp, _ = ScoringHead(weight, 1.0)(hidden, targets)
    ours = torch.autograd.grad((of_logp * logp).sum(), weight)[0]
    monkeypatch.setitem(head.CHUNK, "cpu", 2**24)
    whole = torch.autograd.grad((of_logp * ScoringHead(weight, 1.0)(hidden, targets)[0]).sum(), weight)[0]
    assert ours.dtype == torch.bfloat16
    assert (ours - whole).double().norm() < 2**-8 * whole.double().norm()


class Largest(TorchDispatchMode):
    """The number of elements of the largest result of an operator that is not a view of `given`."""

    def __init__(self, given: torch.Tensor):
        super().__init__()
        self.given, self.elements = given.untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        out = operator(*args, **(kwargs or {}))
        for part in out if isinstance(out, tuple | list) else (out,):
            if isinstance(part, torch.Tensor) and part.untyped_storage().data_ptr() != self.given:
                self.elements = max(self.elements, part.numel())
        return out


def test_no_tensor_is_larger_than_a_chunk(monkeypatch):
    """Four places' logits at a time: the largest tensor is the gradient of the weight, [101, 16], and never [24, 101]."""
    monkeypatch.setitem(head.CHUNK, "cpu", 4 * VOCABULARY)
    hidden, weight, targets, of_logp = inputs()
    with Largest(weight) as largest:
        logp, _ = ScoringHead(weight, 1.0)(hidden, targets)
        assert largest.elements == 4 * VOCABULARY
        torch.autograd.grad((of_logp * logp).sum(), [hidden, weight])
    assert largest.elements == VOCABULARY * HIDDEN < N * VOCABULARY


class Products(TorchDispatchMode):
    """How many products of matrices are computed."""

    count = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.count += operator.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_)
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize(("chunk", "each"), [(N * VOCABULARY, 3), (4 * VOCABULARY, 4)], ids=["all", "4 places"])
def test_only_logits_of_several_chunks_are_made_again(chunk, each, monkeypatch):
    """Logits, and gradients of hidden states and weight: 3 products a chunk. Of several chunks the logits again."""
    monkeypatch.setitem(head.CHUNK, "cpu", chunk)
    hidden, weight, targets, of_logp = inputs()
    with Products() as products:
        logp, _ = ScoringHead(weight, 1.0)(hidden, targets)
        torch.autograd.grad((of_logp * logp).sum(), [hidden, weight])
    assert products.count == each * (N * VOCABULARY // chunk)


def test_parameters_keep_their_names():
    net = build(SHAPE, 0)
    assert [name for name, _ in ScoringModel(net, 1.0).named_parameters()] == [name for name, _ in net.named_parameters()]


def test_a_model_that_changes_its_logits_is_refused():
    """Gemma 2 caps them: c·tanh(z/c)."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16}
    shape = Gemma2Config(**sizes, num_key_value_heads=1, vocab_size=11, final_logit_softcapping=0.01)
    with pytest.raises(UserError, match="gemma2 has no plain linear head"):
        ScoringModel(Gemma2ForCausalLM(shape), 1.0)
    shape.final_logit_softcapping = None
    ScoringModel(Gemma2ForCausalLM(shape), 1.0)
