"""`faultline branch`: new runs from a checkpoint of an old one under other settings, compared by survival."""

from __future__ import annotations

