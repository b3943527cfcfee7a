"""The options of hydra/launcher=slurm."""

import pytest

from harness.errors import UserError
from sweeps.launchers.options import SlurmOptions


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"timeout_min": 0}, "hydra.launcher.timeout_min=0: must be greater than 0"),
        ({"timeout_min": "abc"}, "hydra.launcher.timeout_min='abc': must be a whole number"),
        ({"runs_per_job": 1.5}, "hydra.launcher.runs_per_job=1.5: must be a whole number"),
        ({"mem_gb": float("inf")}, "hydra.launcher.mem_gb=inf: must be a finite number"),
        ({"setup": "hostname"}, "hydra.launcher.setup='hostname': must be a list"),
        ({"signal_delay_s": 3600}, r"signal_delay_s=3600: must be below the time limit, 60 \* timeout_min = 3600 s"),
        ({"ranks": 2, "runs_per_job": 4}, "hydra.launcher.ranks=2: such a run has its task to itself; set runs_per_job=1"),
        ({"code": "old"}, "hydra.launcher.code='old': must be 'sweep' or 'new'"),
        ({"sbatch": {"comment": "project42"}}, "hydra.launcher.sbatch.comment: the launcher sets it"),
        ({"sbatch": {"job_name": "mine"}}, "hydra.launcher.sbatch.job_name: the launcher sets it"),
        ({"sbatch": {"time": "00:01:00"}}, "hydra.launcher.sbatch.time: set hydra.launcher.timeout_min instead"),
        ({"sbatch": {"open-mode": "truncate"}}, "hydra.launcher.sbatch.open-mode: the launcher sets it"),
        ({"site": "nosuch.yaml"}, "hydra.launcher.site=nosuch.yaml: cannot be read"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(options, told):
    with pytest.raises(UserError, match=told):
        SlurmOptions(**options).check()


def test_what_a_site_file_sets_is_checked_too(tmp_path):
    site = tmp_path / "site.yaml"
    for text, told in [
        ("setup: module load cuda", "hydra.launcher.setup='module load cuda': must be a list"),
        ("sbatch: {signal: USR1}", "hydra.launcher.sbatch.signal: the launcher sets it"),
        ("- partition", "site.yaml: not a file of keys and values"),
    ]:
        site.write_text(text)
        with pytest.raises(UserError, match=told):
            SlurmOptions(site=str(site)).check()
    site.write_text("account: 42\nsetup: [hostname]")
    options = SlurmOptions(site=str(site), signal_delay_s=59, timeout_min=1)
    options.check()
    assert (options.account, options.setup, options.sbatch) == ("42", ["hostname"], {})


def test_options_of_sbatch_on_the_command_line_join_those_of_the_site_file(tmp_path):
    """An option of the same name wins over the file's, spelled with a hyphen or an underscore."""
    site = tmp_path / "site.yaml"
    site.write_text("sbatch: {exclude: node013, mail-type: FAIL}")
    options = SlurmOptions(site=str(site), sbatch={"nodes": 4, "mail_type": "END"})
    options.check()
    assert options.sbatch == {"exclude": "node013", "nodes": 4, "mail_type": "END"}
    options = SlurmOptions(site=str(site))
    options.check()
    assert options.sbatch == {"exclude": "node013", "mail-type": "FAIL"}
