"""SkyRL 0.3.0 on a machine without a GPU, for `skyrl_batches.py`: an entry point, named by SkyRL's trainer.override_entrypoint.

Replaced in SkyRL: flash-attn, what it asks of CUDA, the precision of log_softmax under autocast, the sync of weights, two names
of an older vLLM, the number of Ray's GPUs, and the update, which is left out. Ray imports this module in the trainer's processes.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import peft  # noqa: F401  it looks whether flash-attn is there, before the stand-in
import ray
import skyrl_gym
import torch
import torch.distributed.device_mesh
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, BitsAndBytesConfig  # noqa: F401  as peft

from tests.oracles.first_batches import reward
from tests.oracles.on_cpu import softmax_in_fp32

# SkyRL imports two functions of flash-attn, and calls them only with trainer.remove_microbatch_padding=true.
flash_attn = {name: ModuleType(name) for name in ("flash_attn", "flash_attn.bert_padding")}
vars(flash_attn["flash_attn.bert_padding"]).update(pad_input=None, unpad_input=None)
sys.modules |= flash_attn
import skyrl.backends.skyrl_train.workers.model_wrapper  # noqa: E402, F401

for name in flash_attn:
    del sys.modules[name]  # others look whether flash-attn is there

from skyrl.backends.skyrl_train.workers.fsdp import fsdp_worker  # noqa: E402
from skyrl.train.config import SkyRLTrainConfig  # noqa: E402
from skyrl.train.dataset import PromptDataset  # noqa: E402
from skyrl.train.entrypoints.main_base import BasePPOExp  # noqa: E402
from skyrl.train.utils import validate_cfg  # noqa: E402
from skyrl.train.utils.utils import initialize_ray  # noqa: E402


def cuda_is_the_cpu() -> None:
    """In the process of SkyRL's worker the CPU answers what SkyRL asks of CUDA."""
    from skyrl.backends.skyrl_train.distributed import fsdp_utils

    for name in ("set_device", "manual_seed_all", "synchronize", "empty_cache"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    torch.cuda.current_device = lambda: torch.device("cpu")  # SkyRL moves tensors to it
    torch.Tensor.cuda = lambda self, *_, **__: self
    start, mesh, autocast = torch.distributed.init_process_group, torch.distributed.init_device_mesh, torch.autocast

    def mesh_of_cpu(device: str, *words: Any, **keys: Any) -> Any:
        return mesh("cpu", *words, **keys)

    torch.distributed.init_process_group = lambda backend, **keys: start("gloo", **keys)
    torch.distributed.device_mesh.init_device_mesh = fsdp_utils.init_device_mesh = mesh_of_cpu
    torch.autocast = lambda device_type, **keys: autocast("cpu", **keys)
    softmax_in_fp32()


class PolicyWorker(fsdp_worker.FSDPPolicyWorkerBase):
    def __init__(self, *words: Any, **keys: Any):
        cuda_is_the_cpu()
        super().__init__(*words, **keys)

    # vLLM has the checkpoint's weights already. On a CPU it packs them, and SkyRL's way to load others fails.
    async def init_weight_sync_state(self, *_: Any, **__: Any) -> None:
        pass

    async def broadcast_to_inference_engines(self, *_: Any, **__: Any) -> None:
        pass


class First(BasePPOExp):
    """SkyRL's experiment without its update: the first batch is dumped before it."""

    def get_train_dataset(self) -> PromptDataset:
        return PromptDataset(self.cfg.data.train_data, self.tokenizer, self.cfg.trainer.max_prompt_length, num_workers=1)  # not 8

    def get_inference_client(self) -> Any:
        # SkyRL is made for vLLM 0.23. vLLM 0.32 has moved a module, and a function has one more parameter.
        from vllm.entrypoints.launchers import cli_args

        sys.modules["vllm.entrypoints.openai.cli_args"] = cli_args
        from skyrl.backends.skyrl_train.inference_servers import vllm_server_actor

        class Server(vllm_server_actor.VLLMServerActor):
            def __init__(self, *words: Any, **keys: Any):
                from vllm.entrypoints.launchers.launcher import create_server_socket

                vllm_server_actor.create_server_socket = functools.partial(create_server_socket, reuse_port=False)
                super().__init__(*words, **keys)

        vllm_server_actor.VLLMServerActor = Server
        return super().get_inference_client()

    def get_trainer(self, *words: Any, **keys: Any) -> Any:
        trainer = super().get_trainer(*words, **keys)
        trainer.train_critic_and_policy = lambda batch: {}
        return trainer

    def _setup_trainer(self) -> Any:
        fsdp_worker.PolicyWorker = ray.remote(num_gpus=1)(PolicyWorker)
        return super()._setup_trainer()


class Names(BaseTextEnv):
    """An environment of one turn."""

    def __init__(self, env_config: Any = None, extras: Any = None):
        super().__init__()

    def step(self, action: str) -> BaseTextEnvStepOutput:
        return BaseTextEnvStepOutput(observations=[], reward=reward(action), done=True, metadata={})


@ray.remote(num_cpus=1)
def first_batch(config: SkyRLTrainConfig) -> None:
    skyrl_gym.register(id="names", entry_point="tests.oracles.skyrl_cpu:Names")
    First(config).run()


def main() -> None:
    words = [word for word in sys.argv[1:] if "override_entrypoint" not in word]  # SkyRL refuses the key that brought it here
    config = SkyRLTrainConfig.from_cli_overrides(words)
    validate_cfg(config)
    # Ray hands out two GPUs that do not exist, the trainer's and vLLM's, and as many processors as SkyRL's actors ask for.
    ray.init = functools.partial(ray.init, num_gpus=2, num_cpus=16, include_dashboard=False, object_store_memory=300 * 2**20)
    initialize_ray(config)
    ray.get(first_batch.remote(config))
