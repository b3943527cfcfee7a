from pathlib import Path
from typing import get_args

import yaml

from harness.precisions import MULTIPLES, PRECISIONS, PROBED, ActivationFormat, WeightFormat, vllm_option
from harness.rollouts.linear import ACTIVATION_CASTS, WEIGHT_CASTS

OPTIONS = Path("experiments/conf/rollout/precision")


def test_the_table_has_the_options_of_conf_and_no_other():
    options = {file.stem: yaml.safe_load(file.read_text()) for file in OPTIONS.glob("*.yaml")}
    rows = {
        name: {"name": name, "compute": row.compute, "weights": row.weights, "activations": row.activations}
        for name, row in PRECISIONS.items()
    }
    assert rows == options


def test_each_format_has_a_cast_and_each_cast_a_format():
    assert set(WEIGHT_CASTS) == {None, *get_args(WeightFormat)}
    assert set(ACTIVATION_CASTS) == {None, *get_args(ActivationFormat)}
    assert set(MULTIPLES) <= set(WEIGHT_CASTS)


def test_the_order_of_the_table_is_that_of_the_metrics_of_probes():
    """Names and order as recorded runs have them in probe/<precision>/..."""
    assert PROBED == ("bf16", "fp16", "fp8_tensor", "fp8_channel", "fp8_block", "mxfp8", "int8", "nvfp4", "nvfp4_w4a4")


def test_vllm_is_asked_by_formats_and_not_by_name():
    assert vllm_option(None, None) == "fp32, bf16, fp16"
    assert vllm_option("fp8_block", None) == "fp8_block_w8a16"
    assert vllm_option("int8_channel", "int8_token") == "int8"
    assert vllm_option("nvfp4", None) is None
