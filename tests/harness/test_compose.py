"""A grid is composed quickly, and as Hydra composes it."""

import ast
import re
from pathlib import Path

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from harness.compose import compose
from harness.composer import Composer, composer
from harness.errors import UserError

ROWS = [
    ["seed=3"],
    ["seed=4", "actor.lr=1e-5", "actor.lr=2e-5"],
    ["rollout/precision=bf16", "seed=3"],
    ["rollout.precision.weights=bf16", "rollout/precision=nvfp4", "seed=4"],  # a value before the group that it is in
    ["+experiment=demo/fp8", "seed=3", "steps=7"],
    ["correction=token_truncate", "correction.weight.upper=5", "proximal=rollout"],
    ["correction=token_truncate", "correction.weight={upper: 3}"],
    ["reduce=seq_mean_token_sum_norm", "task.length=3"],  # an interpolation: ${task.length}
    ["task.length=5", "reduce=seq_mean_token_sum_norm"],
    ["++loss.extra=[1,2]", "+run.more='a b'", "run.sweep='1e5'"],
    ["~tracking", "seed=3"],
    ["~run.sweep", "run.root=1e3"],
    ["nosuch=1"],
    ["loss=nosuch"],
    ["nosuch/group=x"],
    ["task.length=${nosuch}"],
]


@pytest.mark.slow
def test_every_row_is_as_hydra_composes_it():
    """One composer for all rows, so that one row could spoil the next; twice, so that each is also taken from what is kept."""
    loader, master = composer().loader, composer().config
    one = Composer(loader, master)
    expected = [tried(lambda: _without_hydra(loader.load_sweep_config(master, row))) for row in ROWS]  # noqa: B023
    assert expected.count(None) == 4
    for _ in range(2):
        assert [tried(lambda: one(row)) for row in ROWS] == expected  # noqa: B023
    assert len(one.chosen) == 7  # the choices of groups among the rows


def tried(composing):
    """None for a refusal."""
    try:
        return composing()
    except (HydraException, OmegaConfBaseException):
        return None


def _without_hydra(whole):
    with open_dict(whole):
        del whole["hydra"]
    return OmegaConf.to_container(whole, resolve=True)


def test_a_refusal_names_the_key_and_the_remedy():
    with pytest.raises(UserError, match=r"^actor.learning_rate: unknown key; .*--help lists them all$"):
        compose("actor.learning_rate=1")
    other = r"^advantage.lam: a key of advantage=gae and not of the chosen option; choose that first$"
    with pytest.raises(UserError, match=other):
        compose("advantage.lam=0.9")
    both = r"^loss.eps_high: a key of loss=clip_cov, loss=gspo, loss=luspo, loss=ppo and not .*; choose one of these first$"
    with pytest.raises(UserError, match=both):
        compose("loss=pg", "loss.eps_high=0.3")
    added = r"^correction.reject.veto: the chosen correction has no such filter; add one .*, as '\+correction.reject.veto=\{lev"
    with pytest.raises(UserError, match=added):
        compose("correction.reject.veto.level=worst_token")
    with pytest.raises(UserError, match=r"^loss/nosuch: there is no such option; take one of .*ppo"):
        compose("loss=nosuch")


def test_groups_of_a_folder_of_ones_own(tmp_path):
    (tmp_path / "loss").mkdir()
    (tmp_path / "loss/mine.yaml").write_text("name: ppo\neps_low: 0.1\neps_high: 0.3\n")
    composed = compose("loss=mine", f"hydra.searchpath=[file://{tmp_path}]")
    assert composed["loss"] == {"name": "ppo", "eps_low": 0.1, "eps_high": 0.3}


def test_one_file_below_experiments_names_its_folder_of_options():
    """An arrow that no import contract sees: a path or a module by its text. faultline/rooms.py lists every package."""
    named = re.compile(r"experiments(\.conf|/conf)?")
    knowing = set()
    for file in (file for room in ("algos", "harness", "faultline", "analysis") for file in Path(room).rglob("*.py")):
        texts = (node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant))
        knowing |= {str(file) for text in texts if isinstance(text, str) and named.fullmatch(text)}
    assert knowing - {"faultline/rooms.py"} == {"harness/conf.py"}
