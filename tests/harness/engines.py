"""Engines and small models of tests: a precision by its name, and settings of sampling and of the engine in one call."""

from dataclasses import fields
from typing import Any

from harness.config import PrecisionConfig
from harness.precisions import PRECISIONS
from harness.rollouts import Sampling
from harness.rollouts.local import LocalEngine


def precision(name: str) -> PrecisionConfig:
    row = PRECISIONS[name]
    return PrecisionConfig(name=name, compute=row.compute, weights=row.weights, activations=row.activations)


FP32 = precision("fp32")


def engine_of(kind: type, shape, chosen: PrecisionConfig = FP32, **settings) -> Any:
    """An engine without weights. settings: fields of `Sampling`, and parameters of the engine's own."""
    of_sampling = {field.name for field in fields(Sampling)} & settings.keys()
    own = {name: value for name, value in settings.items() if name not in of_sampling}
    return kind(shape, chosen, Sampling(**{name: settings[name] for name in of_sampling}), **own)


def loaded(net, name: str = "fp32", version: int = 0, **settings) -> LocalEngine:
    """An embedded engine with the weights of a model."""
    engine = engine_of(LocalEngine, net.config, precision(name), **settings)
    engine.load_weights(net.named_parameters(), version)
    return engine
