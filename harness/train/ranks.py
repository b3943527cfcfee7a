"""The ranks of one run: how they meet, share the rows of a batch, and stop together when one of them dies.

A process without a launcher is a group of one in memory, with no port open but gloo's own on loopback. Under torchrun, srun or
the deepspeed launcher the ranks meet at MASTER_ADDR:MASTER_PORT, and rank 0 listens on that address alone. Every rank holds
the whole batch [B, T] of a step, and computes responses, rewards and gradients for its share of the rows only. So a count or
mean over a batch is the same on one rank and on many.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from harness.config import Config
from harness.errors import Unavailable, UserError


class Ranks(NamedTuple):
    """This process as one of the `size` ranks of a run. watch: detects dead ranks; None for a single process."""

    rank: int
    size: int
    watch: Watch | None = None

    def share(self, rows: Tensor) -> Tensor:
        """The part of `rows` that this rank computes. The number of rows must be a multiple of `size`."""
        return rows.chunk(self.size)[self.rank]

    def gather(self, part: Tensor) -> Tensor:
        """Concatenate the rows of all ranks in order; `part` is this rank's share. Collective: every rank calls it."""
        if self.size == 1:
            return part
        if part.dtype in (torch.int16, torch.bool):  # no backend exchanges these
            return self.gather(part.contiguous().view(torch.uint8)).view(part.dtype)
        rows = part.new_empty(self.size * len(part), *part.shape[1:])
        dist.all_gather_single(rows, part.contiguous())
        return rows

    def sum(self, values: Tensor) -> Tensor:
        """Sum `values` over all ranks, in place. Collective: every rank calls it."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def first(self, value: int) -> int:
        """Return the value of rank 0 on every rank. Collective: every rank calls it."""
        return self._agreed(value if self.rank == 0 else 0)

    def any(self, value: int) -> int:
        """Return the largest value of all ranks on every rank. Collective: every rank calls it."""
        return self._agreed(value, dist.ReduceOp.MAX)

    @contextmanager
    def together(self, last_words: Callable[[int, str, str], None]) -> Iterator[None]:
        """Run the body on all ranks together: after an error on one rank, the others stop too.

        last_words: called as (this rank, final state of the run, reason) before another rank's end makes this process end too.
        """
        if self.watch is None:
            yield
            return
        self.watch.last_words = last_words
        try:
            yield
            self.barrier()
        except Exception as error:
            if lost_a_rank(error):
                self.watch.find_dead()
            key = "unavailable" if isinstance(error, Unavailable) else "stopped"
            self.watch.announce(key, f"rank {self.rank} stopped: {str(error) or type(error).__name__}")
            raise

    def barrier(self) -> None:
        """Wait until all ranks have called this method."""
        self.first(0)

    def _agreed(self, value: int, operation=dist.ReduceOp.SUM) -> int:
        if self.size == 1:
            return value
        agreed = torch.tensor(value, dtype=torch.int64, device="cuda" if torch.cuda.is_available() else "cpu")
        dist.all_reduce(agreed, operation)
        return int(agreed)


class Watch(threading.Thread):
    """Thread that ends this process when another rank has died, and names the dead rank.

    Each rank increments a counter in a store that all ranks share. Rank 0 watches the counters of the others, and announces
    one that stands still. The others watch the counter of rank 0. Patience is counted in polls, not in seconds, so that a job
    that was suspended as a whole goes on.
    """

    EVERY, PATIENCE, HURRY = 0.5, 30, 6
    """EVERY: seconds between polls. PATIENCE: polls until a silent rank counts as dead. HURRY: PATIENCE after an error."""

    CODES: ClassVar = {"unavailable": os.EX_TEMPFAIL, "stopped": 1}
    """Exit code of other ranks, by the key under which one announces its end. 75: a later start may succeed; 1: it will not."""

    def __init__(self, store: dist.Store, rank: int, size: int):
        super().__init__(daemon=True, name="watch")
        self.store, self.rank, self.size = store, rank, size
        self.last_words: Callable[[int, str, str], None] = lambda rank, state, reason: None
        self.leaving, self.patience = threading.Event(), self.PATIENCE
        atexit.register(self._leave)
        self.start()

    def run(self) -> None:
        others = range(1, self.size) if self.rank == 0 else (0,)
        counts, still = dict.fromkeys(others, 0), dict.fromkeys(others, 0)
        while not self.leaving.is_set():
            try:
                self.store.add(f"alive/{self.rank}", 1)
                for other in others:
                    count = self.store.add(f"alive/{other}", 0)
                    still[other] = still[other] + 1 if count == counts[other] else 0
                    counts[other] = count
                    if still[other] > self.patience:
                        self.store.set("unavailable", f"rank {other} died: no sign of life for {self.EVERY * still[other]:.0f} s")
                for key, code in self.CODES.items():
                    if self.store.check([key]):
                        self._end(self.store.get(key).decode(), code)
            except dist.DistError:
                self._end("rank 0 died: the store that it held is gone", os.EX_TEMPFAIL)
            self.leaving.wait(self.EVERY)

    def find_dead(self) -> None:
        """After a failed collective, wait EVERY · PATIENCE seconds. The watch ends this process earlier if a rank is dead."""
        self.patience = self.HURRY
        time.sleep(self.EVERY * self.PATIENCE)

    def announce(self, key: str, reason: str) -> None:
        """Tell the other ranks why this one ends, under a key of CODES. This rank itself ends later, by its error."""
        self.leaving.set()
        with suppress(dist.DistError):
            self.store.set(key, reason)

    def _end(self, reason: str, code: int) -> None:
        if self.leaving.is_set():
            return
        print(f"{reason}; rank {self.rank} stops too. Start again: the run resumes from its last checkpoint", file=sys.stderr)
        try:
            self.last_words(self.rank, "interrupted" if code == os.EX_TEMPFAIL else "failed", reason)
            self._leave()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # the main thread may be waiting for the dead rank for ever

    def _leave(self) -> None:
        """Leave the run. Rank 0, which may serve the ranks' store, waits for the others, at most PATIENCE · EVERY / 5 seconds.

        The thread ends first: one that is within the store when Python ends is unwound through C++, which aborts the process.
        """
        self.leaving.set()
        if threading.current_thread() is not self:
            self.join(self.PATIENCE * self.EVERY / 5)
        with suppress(dist.DistError):
            left = self.store.add("left", 1)
            for _ in range(self.PATIENCE if self.rank == 0 else 0):
                if left == self.size:
                    break
                time.sleep(self.EVERY / 5)
                left = self.store.add("left", 0)


_joined: Ranks | None = None


def join() -> Ranks:
    """Meet the other ranks, and set the environment variables that DeepSpeed reads. Every later call returns the same `Ranks`."""
    global _joined
    if _joined is None:
        _environment()
        rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        if not dist.is_initialized():
            store = dist.HashStore() if size == 1 else _store(rank, size)
            backend = "nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size)
            _joined = Ranks(rank, size, None if size == 1 else Watch(dist.PrefixStore("watch", store.clone()), rank, size))  # type: ignore[attr-defined]
        else:
            _joined = Ranks(dist.get_rank(), dist.get_world_size())
    return _joined


def check_ranks(config: Config, size: int) -> None:
    """Raise UserError if `size` ranks cannot evenly share the rows of each batch, or if the config's engine needs one rank."""
    rows = config.rollout.prompts * config.rollout.group_size
    shares = {
        f"rollout.prompts x rollout.group_size = {rows} responses in {config.actor.num_minibatches} mini-batches": rows
        // config.actor.num_minibatches,
        "evaluation.prompts x evaluation.samples responses": config.evaluation.prompts * config.evaluation.samples,
        "evaluation.train_prompts x evaluation.samples responses": config.evaluation.train_prompts * config.evaluation.samples,
    }
    if config.diagnostics.persistence.every is not None:
        shares["diagnostics.persistence.responses"] = config.diagnostics.persistence.responses
    for what, number in shares.items():
        if number % size:
            raise UserError(f"{what}: {number} rows cannot be shared evenly by {size} ranks; change them or the number of ranks")
    rule = config.rollout.engine.params.get("kv_at_sync", "recompute")
    if size > 1 and rule != "recompute":
        raise UserError(
            f"rollout.engine.kv_at_sync={rule} on {size} ranks: a checkpoint holds the engine's state of one process; "
            "use one rank, or recompute"
        )


def _environment() -> None:
    """Under srun, set RANK, WORLD_SIZE, LOCAL_RANK and the meeting point. torchrun and deepspeed set them themselves."""
    env = os.environ
    if "RANK" not in env and int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"] = (
            env[name] for name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS")
        )
        if int(env.get("SLURM_STEP_NUM_NODES", 1)) == 1:
            env.setdefault("MASTER_ADDR", "127.0.0.1")
        elif "MASTER_ADDR" not in env:
            nodes = subprocess.run(
                ["scontrol", "show", "hostnames", env["SLURM_STEP_NODELIST"]], capture_output=True, text=True, check=True
            )
            env["MASTER_ADDR"] = nodes.stdout.split()[0]
        # A port of this step's own below the ephemeral ones, the same on every rank.
        env.setdefault("MASTER_PORT", str(15000 + (31 * int(env["SLURM_JOB_ID"]) + int(env["SLURM_STEP_ID"])) % 15000))
    env.setdefault("LOCAL_RANK", "0")
    if env.get("MASTER_ADDR", "127.0.0.1") in ("127.0.0.1", "localhost"):
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _store(rank: int, size: int) -> dist.Store:
    """The store at MASTER_ADDR:MASTER_PORT by which the ranks meet. Under torchrun it exists; else rank 0 opens it there."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        return dist.PrefixStore(f"faultline/{attempt}", dist.TCPStore(host, port, size, is_master=False))
    if rank > 0:
        return dist.TCPStore(host, port, size, is_master=False)
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        raise UserError(f"MASTER_ADDR={host} MASTER_PORT={port}: rank 0 cannot listen there ({error.strerror})") from None
    listener.listen()
    return dist.TCPStore(host, port, size, is_master=True, master_listen_fd=listener.detach(), wait_for_workers=False)


def lost_a_rank(error: Exception) -> bool:
    """Whether an error means that a collective failed. gloo raises a plain RuntimeError that names its source file."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
