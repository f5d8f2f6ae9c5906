"""Hyperparameters and results of a run in TensorBoard's format.

Knows: the messages of TensorBoard's plugin `hparams`. Does not know: files, which settings a run has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Setting = str | int | float | bool


def hyperparameters(settings: Mapping[str, Setting], results: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the values of a summary, as keywords of TensorBoard's message.

    Args:
        settings: The hyperparameters by name.
        results: The results by name.
    """
    from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

    inputs = [{"name": name, "type": f"DATA_TYPE_{_kind(value)[0]}"} for name, value in settings.items()]
    experiment = {"hparam_infos": inputs, "metric_infos": [{"name": {"tag": name}} for name in results]}
    chosen = {name: {_kind(value)[1]: value} for name, value in settings.items()}
    parts: dict[str, dict[str, Any]] = {
        "experiment": experiment,
        "session_start_info": {"hparams": chosen},
        "session_end_info": {"status": api_pb2.STATUS_SUCCESS},
    }
    found = []
    for name, content in parts.items():
        data = plugin_data_pb2.HParamsPluginData(**{name: content}).SerializeToString()
        plugin = {"plugin_name": "hparams", "content": data}
        found.append({"tag": f"_hparams_/{name}", "metadata": {"plugin_data": plugin}})
    return [*found, *({"tag": name, "simple_value": value} for name, value in results.items())]


def _kind(value: Setting) -> tuple[str, str]:
    """Return the type of a value, and the field that holds it."""
    if isinstance(value, bool):
        return "BOOL", "bool_value"
    return ("STRING", "string_value") if isinstance(value, str) else ("FLOAT64", "number_value")
