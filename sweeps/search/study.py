"""The Optuna study of a search: its journal, its sampler, its pruner, and the seeds of its trials."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from harness.files import open_own, refuse_links
from sweeps.ledger import Sweep
from sweeps.search.spec import Spec


def open_study(sweep: Sweep, spec: Spec) -> optuna.Study:
    """Open the sweep's Optuna study. The sampler's seed grows with the trials, so that a restart suggests new points."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(study_name=spec.name, storage=journal(sweep), direction="maximize", load_if_exists=True)
    study.sampler = optuna.samplers.TPESampler(multivariate=True, constant_liar=True, seed=spec.sampler_seed + len(study.trials))
    study.pruner = CollapsePruner(spec.prune.fraction, spec.prune.patience)
    return study


def journal(sweep: Sweep) -> JournalStorage:
    """Optuna's journal storage in the sweep's folder."""
    refuse_links(sweep.path, ".sweep/search.journal")
    sweep.home.mkdir(parents=True, exist_ok=True)
    path = str(sweep.home / "search.journal")
    open_own(Path(path), "a").close()  # Optuna would follow a link
    return JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))


class CollapsePruner(optuna.pruners.BasePruner):
    """Pruner that ends a trial when its last `patience` reported values are below `fraction` of its own best one."""

    def __init__(self, fraction: float, patience: int):
        self.fraction, self.patience = fraction, patience

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether to end the trial: its last `patience` reports are below `fraction` of its best. NaN counts as low."""
        reports = [value for _, value in sorted(trial.intermediate_values.items())]
        recent, best = reports[-self.patience :], max(reports, default=0.0)
        return len(reports) > self.patience and all(not value >= self.fraction * best for value in recent)


def free_seed(others: list[FrozenTrial], params: dict[str, Any], seeds: int) -> int:
    """First of `seeds` consecutive seeds that no trial in `others` with parameters `params` used, failed trials aside."""
    alike = [other for other in others if other.params == params and other.state != TrialState.FAIL]
    taken = {other.user_attrs.get("first_seed") for other in alike}
    return next(first for first in count(0, seeds) if first not in taken)


def importance(ended: list[FrozenTrial]) -> dict[str, float]:
    """Importance of each parameter (PED-ANOVA, arXiv 2304.10255). Collapsed trials get the lowest score. {} below 4 trials."""
    values = [trial.value for trial in ended if trial.state == TrialState.COMPLETE and trial.value is not None]
    if len(ended) < 4 or not values:
        return {}
    study = optuna.create_study(direction="maximize")
    for trial in ended:
        value = trial.value if trial.state == TrialState.COMPLETE else min(values)
        study.add_trial(optuna.create_trial(params=trial.params, distributions=trial.distributions, value=value))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    return optuna.importance.get_param_importances(study, evaluator=evaluator)
