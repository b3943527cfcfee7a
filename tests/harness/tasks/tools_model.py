"""A small pretrained model with a tokenizer of characters, for the tests of turns: made here, untrained."""

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

PIECES = ["<eos>", "<unk>", *" \n=<>+-*0123456789", "12"]
CALL = "<<1 + 2>>"
"""A whole call as one token, so that an untrained policy calls in a quarter of its turns of six tokens."""
IDS = {piece: i for i, piece in enumerate([*PIECES, CALL])}
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"


def small_qwen3(**sizes) -> Qwen3ForCausalLM:
    """An untrained model of two layers, the same at every call. sizes: those in which the models of tests differ."""
    torch.manual_seed(0)
    shared = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    return Qwen3ForCausalLM(Qwen3Config(**shared, **sizes, eos_token_id=0))


def make(path, *, uniform: bool = False) -> str:
    """Save model and tokenizer under `path`. uniform: every token is equally probable after any history."""
    vocabulary = {piece: i for i, piece in enumerate(PIECES)}
    pieces = Tokenizer(models.BPE(vocabulary, [("1", "2")], unk_token="<unk>", fuse_unk=True))
    pieces.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="<eos>", unk_token="<unk>", chat_template=TEMPLATE)
    tokenizer.add_tokens([AddedToken(CALL, normalized=False)])
    tokenizer.save_pretrained(path)
    net = small_qwen3(vocab_size=len(IDS), intermediate_size=64, max_position_embeddings=160, tie_word_embeddings=False)
    with torch.no_grad():
        net.lm_head.weight.mul_(0.0 if uniform else 20.0)  # so large that a change of the history changes what follows
    net.save_pretrained(path)
    return str(path)
