"""verl's extension of vLLM's worker with another way to load what verl sends; a key of `verl_batches.py` names it.

On a CPU vLLM packs weights, and verl's `model.load_weights` finds nothing to load into. vLLM's own reload_weights unpacks them.
"""

from __future__ import annotations

from typing import Any

from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension


class Extension(vLLMColocateWorkerExtension):
    def update_weights_from_ipc(self, peft_config: Any = None, base_sync_done: bool = False, use_shm: bool = False) -> None:
        weights: list[Any] = []
        receiver = BucketedWeightReceiver(zmq_handle=self._get_zmq_handle(), device=self.device, use_shm=use_shm)
        receiver.receive_weights(on_bucket_received=lambda bucket, _: weights.extend((k, v.clone()) for k, v in bucket))
        assert weights
        self.reload_weights(weights_iterator=iter(weights))
