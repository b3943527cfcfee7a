"""The experiment file that is built from another program's config, and what is reported of its keys."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml

from algos.corrections.spec import Correction, Denominator, Normalize, Plugin, RatioNumerator, Reject, Weight
from faultline.tools.import_config.source import Source
from harness.conf import CONF
from harness.errors import UserError, printable
from harness.yaml_file import read_yaml

BOUNDS = re.compile(r"(?:.*\.)?rollout_(?:is|rs)_threshold")
"""Pattern of verl's keys whose value may be two bounds, as 0.5_2.0."""
UNREACHED = 4.86e8
"""Replacement for ∞, which a config cannot contain, as the upper bound of a ratio or as its offset from 1. No ratio exceeds it,
since ratios are clamped at e²⁰."""

LARGE_MODELS_LR = 1e-4
"""Learning rate below which the built-in small model hardly learns. Large models are trained at 1e-6 to 1e-5."""
BAND = (0.99, 1 / 0.99)
"""Bounds of the geometric mean ratio of a response. Narrower bands were made for BF16 and large models (docs/collapsed.md)."""
MOST_ROUNDS = 1000
"""Largest rollout.filter.max_rounds. It replaces "no limit" of other programs."""


class PolicyKeys(NamedTuple):
    """Another program's keys for the pretrained model, for its data, and for the longest prompt and response in tokens."""

    model: str
    data: str
    prompt: str
    response: str


class Gpus(NamedTuple):
    """GPUs on which a recipe runs, with a process (rank) on each."""

    per_node: int
    nodes: int

    @property
    def ranks(self) -> int:
        """Number of processes of the run."""
        return self.per_node * self.nodes

    def start(self) -> list[str]:
        """Return the words of a command that start the ranks of a run. The run's own words follow them."""
        if self.ranks == 1:
            return ["faultline", "train"]
        module = ["-m", "experiments.train"]
        if self.nodes == 1:
            return ["torchrun", "--nproc-per-node", str(self.per_node), *module]
        tasks = ["--ntasks-per-node", str(self.per_node), "--gpus-per-node", str(self.per_node)]
        return ["srun", "--nodes", str(self.nodes), *tasks, "python", *module]


class Translation:
    """An experiment file under construction: options of config groups, values, and comments for the reader of the file.

    ready: whether the file sets its model and its task too; otherwise the defaults apply. `warnings` are the first lines of
    the file, `notes` are differences of meaning, and `lost` are keys without a counterpart, with the reason. gpus: those of the
    recipe, None if it does not say. A text `source` of a method is the other program's setting, as comments name it.
    """

    def __init__(self, ready: bool = False) -> None:
        self.ready = ready
        self.options: dict[str, str] = {}
        self.values: dict[str, Any] = {}
        self.ratio: RatioNumerator = "old"
        self.weight = Weight()
        self.reject: dict[str, Reject | Plugin] = {}
        self.normalize: Normalize = "none"
        self.denominator: Denominator = "original"
        self.warnings: list[str] = []
        self.notes: list[str] = []
        self.lost: list[str] = []
        self.gpus: Gpus | None = None

    def loss(self, name: str, **params: Any) -> None:
        """Set the loss and its parameters in the experiment file."""
        self.options["loss"] = name
        if params:
            self.values["loss"] = params

    def set(self, key: str, value: Any) -> None:
        """Set a dotted key of the experiment file, unless the value is None."""
        if value is None:
            return
        *groups, last = key.split(".")
        place = self.values
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value

    def rename(self, source: Source, names: Mapping[str, str]) -> None:
        """Copy numbers from the other program's config to the experiment file. names: its key -> key here."""
        for theirs, ours in names.items():
            self.set(ours, source.number(theirs))

    def defaults(self, source: Source, program: str, values: Mapping[str, Any]) -> None:
        """If the recipe's own model trains, write the other program's default of each unset key. A note names them in any case.

        values: its key -> its default, for defaults that differ from those here.
        """
        unset = {key: value for key, value in values.items() if not source.given(key)}
        if unset:
            named = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in unset.items())
            written = "" if self.ready else ", which --launch alone writes"
            self.notes.append(f"{program}'s defaults of keys not set{written}: {named}")
        if self.ready:
            source.expand(unset)

    def compute(self, dtype: str, program: str, given: str, bf16_weights: bool = False) -> None:
        """Set the dtype in which the trainer computes, or warn that it stays fp32.

        It stays fp32 for the built-in small model, because its engine and trainer agree exactly in one dtype. given: keys of the
        recipe that choose the dtype, as key=value; empty if the program's default does. bf16_weights: whether the program keeps
        no copy of the weights in fp32.
        """
        if self.ready:
            self.set("actor.dtype", dtype)
            if dtype == "bf16" and bf16_weights and "lora" in self.values.get("actor", {}):
                self.notes.append(
                    f"actor.lora: {program} keeps no copy in fp32; adapters have one here, frozen weights need none"
                )
            elif dtype == "bf16" and bf16_weights:
                self.set("actor.masters", "none")
        elif given and dtype != "fp32":
            self.warnings.append(
                f"{given}: the trainer computes in fp32 here, in {program} in {dtype}, which adds to the mismatch. "
                f"--launch DIR writes actor.dtype={dtype}"
            )

    def minibatches(self, source: Source, size: str, prompts: str) -> None:
        """Set actor.num_minibatches. size, prompts: the other program's keys for the prompts per mini-batch and per step."""
        number, of = source.number(size), self.values.get("rollout", {}).get("prompts")
        if number and of:
            self.set("actor.num_minibatches", math.ceil(of / number))
        elif number:
            self.lost.append(f"{source.key(size)}={number}: actor.num_minibatches is {prompts} over it, which is not set")

    def epochs(self, source: Source, epochs: str, steps: str) -> None:
        """Warn if the run may differ in length from the other program's. epochs, steps: its keys for the length of a run."""
        value = source.take(epochs)
        if "steps" in self.values:
            if value is not None:
                self.notes.append(f"{source.key(epochs)}={value}: {source.key(steps)} is set, and ends the run here")
            return
        counted = f"{steps} is not set" if value is None else f"{source.key(epochs)}={value}: a run here counts steps, not epochs"
        remedy = "give train steps=N, with N = epochs · prompts of the data ÷ rollout.prompts"
        default = read_yaml(CONF / "config.yaml")["steps"]  # without Hydra, which the base install lacks
        self.warnings.append(f"{counted}. STEPS STAY AT THE DEFAULT OF {default} otherwise: {remedy}")

    def small_model(self, source: Source, model: str) -> None:
        """Put first a warning that the built-in small model trains, if the config names a model by the key `model`.

        A learning rate for large models is not written, but noted.
        """
        actor = self.values.get("actor", {})
        if 0 < actor.get("lr", 0) < LARGE_MODELS_LR:
            kept = "the recipe's, for large models; the small model keeps its own rate. --launch DIR writes it"
            self.notes.append(f"actor.lr={actor.pop('lr'):g}: {kept}")
            if not actor:
                del self.values["actor"]
        if source.has(model):
            name = f" {source.text(model)}" if source.resolved(model) else ""
            trains = f"the built-in small model trains, not the recipe's{name}"
            self.warnings.insert(0, f"{trains}. --launch DIR writes a run of the recipe's own model.")

    def policy(self, source: Source, keys: PolicyKeys) -> None:
        """Set the pretrained model, and the text task that matches its data. Raises UserError if the config names no model."""
        model, data = source.text(keys.model), source.text(keys.data)
        if model is None:
            raise UserError(f"{keys.model} is missing: name the model that --launch is to train, or import without it")
        task = "gsm8k" if "gsm8k" in str(data).lower() else "jsonl"
        self.options |= {"model": "hub", "warmstart": "none", "task": task}
        self.set("model.path", model)
        if task == "jsonl" and data is not None and data.endswith((".json", ".jsonl")):
            self.set("task.path", data)
        elif data is not None:
            read = "task=gsm8k reads it from the hub" if task == "gsm8k" else "give task.path, JSON lines, and task.verifier"
            self.notes.append(f"{source.key(keys.data)}={data}: no run reads it here; {read}")
        self.set("task.max_prompt", source.number(keys.prompt))
        self.set("task.answer_length", source.number(keys.response))

    def run_on(self, source: Source, per_node: str, nodes: str) -> None:
        """Set the GPUs of the run if the recipe's own model trains. per_node, nodes: the other program's keys of the numbers."""
        if self.ready and source.resolved(per_node) and (source.resolved(nodes) or not source.has(nodes)):
            self.gpus = Gpus(_count(source, per_node), _count(source, nodes))

    def sampling(self, source: Source, top_p: str, top_k: str) -> None:
        """Set top-p and top-k sampling. top_p, top_k: the other program's keys. Its top k of −1 becomes 0 here: all tokens.

        A warning says if they cut tokens off.
        """
        p, k = source.number(top_p), source.number(top_k)
        self.set("rollout.top_p", p)
        self.set("rollout.top_k", None if k is None else max(k, 0))
        keep_all = {top_p: (p, (None, 1)), top_k: (k, (None, 0, -1))}
        cut = [f"{source.key(name)}={value:g}" for name, (value, neutral) in keep_all.items() if value not in neutral]
        if cut:
            why = "the engine draws from a cut distribution, RL trains the whole one, and no correction undoes that"
            remedy = "Let top_p be 1 and top_k off: with processed_logprobs every ratio would be wrong too"
            self.warnings.append(f"{', '.join(cut)}: {why}. {remedy}")

    def choose(self, group: str, source: Source, key: str, options: Mapping[Any, str]) -> None:
        """Choose the option of config group `group` by `key`. options: value of `key` -> option. Other values go to `lost`."""
        value = source.take(key)
        if value in options:
            self.options[group] = options[value]
        elif value is not None:
            self.lost.append(f"{source.key(key)}={value}: no such {group} here, or no run provides what it needs")

    def kl(self, kind: str, coef: float, source: str) -> None:
        """Add a KL term to the loss, unless coef is 0. kind: k1, k2, k3, k3_unbiased or abs.

        With verl's "+" after the kind, the term has the gradient of k2.
        """
        value = kind.removesuffix("+")
        if coef == 0:
            return
        if value not in ("k1", "k2", "k3", "k3_unbiased", "abs") or coef < 0:
            self.lost.append(f"{source}: no such KL term here")
            return
        self.options["kl"] = ("k3_k2" if value == "k3" else "k2") if kind.endswith("+") else value
        self.values["kl"] = {"coef": coef}
        if kind in ("k1+", "abs+"):
            self.notes.append(f"{source}: of the value {value} and the gradient of k2; here the value is k2's too")
        if kind == "k1":
            self.notes.append(f"{source}: the mean gradient of k1 as a loss is 0; it pulls towards no reference")

    def kl_in_reward(self, kind: str, coef: float, source: str, target: float | None, horizon: float | None) -> None:
        """Subtract a KL penalty from the reward. kind: the KL estimator. target, horizon: settings of an adaptive coefficient."""
        value = kind.removesuffix("+")
        if "kl" in self.options:
            self.lost.append(f"{source}: a run has one KL, and this config has one in its loss too")
        elif value not in ("k1", "k2", "k3", "abs") or coef < 0:
            self.lost.append(f"{source}: no such KL penalty here")
        elif coef:
            self.options["kl"] = value
            self.values["kl"] = {"coef": coef, "place": "reward", "target": target, "horizon": horizon}
            if self.options.get("advantage") == "reinforce_pp":
                self.notes.append(f"{source}: theirs gives a token the penalties still to come, this that of its whole response")

    def entropy(self, coef: float | None, source: str, reduction: str | None = None) -> None:
        """Add an entropy bonus. reduction: how the other program reduces the entropy, if it may differ from the loss."""
        if coef is None or coef == 0:
            return
        if coef < 0:
            self.lost.append(f"{source}={coef}: rewards certainty; entropy_coeff here is ≥ 0")
            return
        self.set("entropy_coeff", coef)
        if reduction is not None and self.options.get("reduce") != reduction:
            self.notes.append(f"{source}: theirs is the {reduction} of the entropy, this is reduced as the loss is")

    def schedule(self, name: object, source: str, warmup: float, min_ratio: float | None = None) -> None:
        """Set the learning-rate schedule, by its name in transformers. warmup: steps. min_ratio: last/first rate of a cosine."""
        name = "constant" if name == "constant_with_warmup" else name
        if name not in ("constant", "linear", "cosine", "inverse_sqrt"):
            self.lost.append(f"{source}={name}: no such schedule here")
            return
        if (name, warmup) != ("constant", 0):
            ratio = {"min_lr_ratio": min_ratio} if min_ratio and name == "cosine" else {}
            self.set("actor.schedule", {"name": name, "warmup_steps": int(warmup)} | ratio)

    def filter_groups(self, rounds: float | None, source: str) -> None:
        """Set DAPO's dynamic sampling. rounds: maximum number of sampling rounds; 0 or less means no limit."""
        if rounds == 1:
            self.lost.append(f"{source}=1: one round is never refilled; rollout.filter.max_rounds is 2 or more")
            return
        most = MOST_ROUNDS if rounds is None or rounds <= 0 else int(rounds)
        self.set("rollout.filter.max_rounds", min(most, MOST_ROUNDS))
        self.notes.append(f"{source}: theirs ends with an error at its limit, this fills up with groups of equal rewards")

    def weigh(self, source: str, level: str, action: str, lower: float | None, upper: float | None, apply: bool = True) -> None:
        """Set the importance weight. Bounds of 0 and ∞ become no bound. Raises UserError if no weight here is equivalent."""
        lower = lower or None
        if lower is None and (action == "clip" or upper == math.inf):
            action = "truncate"
        if upper == math.inf:
            upper = UNREACHED if action == "truncate" else None
        settings: dict[str, Any] = {"level": level, "action": action, "lower": lower, "upper": upper}  # Weight checks them
        try:
            self.weight = Weight(**settings, apply=apply)
        except ValueError as error:
            unusable(source, str(error))

    def filter(
        self, source: str, name: str, level: str, statistic: str, lower: float | None, upper: float | None, when: str = "all"
    ) -> None:
        """Add a filter, and warn of a geometric band that docs/collapsed.md advises against.

        Bounds of 0 and ∞ on a ratio become no bound. Raises UserError if no filter here is equivalent.
        """
        if statistic == "ratio":
            lower, upper = lower or None, None if upper == math.inf else upper
        settings: dict[str, Any] = {"level": level, "statistic": statistic, "lower": lower, "upper": upper, "when": when}
        try:
            self.reject[name] = Reject(**settings)
        except ValueError as error:
            unusable(source, str(error))
        if (level, when) == ("geometric", "all") and lower and upper and lower >= BAND[0] and upper <= BAND[1]:
            share = 3 if lower > 0.998 and upper < 1.002 else 12  # verl's 0.999 to 1.001, of either ratio; SkyRL's 0.99 to 1.01
            kept = f"this geometric band keeps {share} % of an FP8 batch of SmolLM2, or less"
            self.warnings.append(f"{source}: {kept}; docs/collapsed.md says: do not set it")

    def render(self, title: str, left: list[str], folder: Path, name: str) -> str:
        """Render the text of the experiment file `folder`/experiment/`name`.yaml.

        left: keys of the other program that were not translated.
        """
        denominator: Denominator = self.denominator if self.reject else "original"
        normalize: Normalize = self.normalize if self.weight.level and self.weight.apply else "none"
        ratio: RatioNumerator = self.ratio if self.weight.level or self.reject else "old"
        correction = Correction(ratio, self.weight, self.reject, normalize, denominator)
        values = self.values | {"correction": _plain(correction)}
        # A line break in a key would end its comment, and what follows would be read as YAML.
        words = ["--config-dir", str(folder), f"+experiment={name}"]
        start = printable(shlex.join([*(self.gpus or Gpus(1, 1)).start(), *words]))
        lines = [
            "# @package _global_",
            f"# {printable(title)}, translated. As {printable(str(folder))}/experiment/{name}.yaml it is run by",
            f"#   {start}",
        ]
        lines += [f"# WARNING: {printable(warning)}" for warning in self.warnings]
        lines += [f"# note: {printable(note)}" for note in self.notes]
        lines += [f"# not translated: {printable(line)}" for line in self.lost + left]
        if not self.ready:  # in fp32 the small model's engine and trainer agree exactly
            lines += [f"# a control: {start} {' '.join(_control(correction))}"]
        lines += ["defaults:", *(f"  - override /{group}: {option}" for group, option in self.options.items())]
        if "rollout/precision" not in self.options:
            lines += ["  - override /rollout/precision: bf16  # the dtype of the rollout is not set; theirs is bf16 by default"]
        lines += ["  - override /correction: none  # a clean slate: `correction` below sets every key of it"]
        return "\n".join(lines) + "\n" + yaml.safe_dump(values, sort_keys=False)


def unusable(setting: str, reason: str) -> NoReturn:
    """Raise UserError for a part of a correction that cannot be translated, because the file would silently train without it."""
    raise UserError(f"{setting}: {reason}; or remove it to translate the rest without it")


def _count(source: Source, name: str) -> int:
    """Take the value of `name`, by default 1, as a count. Raises UserError unless it is a whole number of at least 1."""
    number = source.number(name, default=1)
    if number < 1 or number != int(number):
        raise UserError(f"{source.key(name)}={number:g}: must be a whole number of at least 1")
    return int(number)


def check_bounds(key: str, text: str) -> None:
    """Raise UserError if Hydra takes verl's two bounds "lower_upper" for one number, as 0.5_2 for 0.52. text: as written."""
    if BOUNDS.fullmatch(key) is None or "_" not in text:
        return
    try:
        number = float(text)
    except ValueError:  # text to Hydra as well
        return
    remedy = "for two bounds write each with a decimal point, as 0.5_2.0"
    raise UserError(f"{key}={text}: Hydra and YAML read this as the number {number:g}, and so does verl; {remedy}")


def _control(correction: Correction) -> list[str]:
    """Overrides of a run with this correction that make it a control: exact rollouts, and no correction."""
    weight = correction.weight if correction.weight.level else Weight()
    set_to = {
        **{f"weight.{key}": "null" for key in ("level", "lower", "upper") if getattr(weight, key) is not None},
        **({"normalize": "none"} if correction.normalize != "none" else {}),
        **({"denominator": "original"} if correction.denominator != "original" else {}),
        **({"ratio": "old"} if correction.ratio != "old" else {}),
    }
    words = [f"correction.{key}={value}" for key, value in set_to.items()]
    return ["rollout/precision=fp32", *words, *(["~correction.reject"] if correction.reject else [])]


def _plain(correction: Correction) -> dict[str, Any]:
    return {
        "ratio": correction.ratio,
        "weight": {key: value for key, value in vars(correction.weight).items() if (key, value) != ("apply", True)},
        "reject": {name: dict(vars(filter_)) for name, filter_ in correction.reject.items()},
        "normalize": correction.normalize,
        "denominator": correction.denominator,
    }
