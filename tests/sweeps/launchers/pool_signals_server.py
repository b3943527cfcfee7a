"""Imported by the fork server of pool_signals.py: sweeps/launchers/preloaded.py without the packages that a run needs."""

import signal

import harness.run.signals  # noqa: F401
import sweeps.launchers.pool  # noqa: F401
from sweeps.launchers.orphans import end_quietly_without_data, end_with_parent

end_with_parent(signal.SIGKILL)
end_quietly_without_data()
