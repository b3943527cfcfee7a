"""A launcher that stands still between the birth of a run's process and its data: python -m ...killed_before_data.

It has asked the fork server for a process, which exists, and has not told it what to run.
"""

import multiprocessing
import os
import signal
from multiprocessing import forkserver

if __name__ == "__main__":
    connect = forkserver.connect_to_new_process

    def connect_and_stop(descriptors):
        ends = connect(descriptors)
        os.kill(os.getpid(), signal.SIGSTOP)
        return ends

    forkserver.connect_to_new_process = connect_and_stop
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.sweeps.launchers.pool_signals_server"])
    context.Process(target=print).start()
