"""Metadata, statistics and metrics of a KServe v2 server and its models.

The keys are those of Triton's JSON and of its messages' fields, for JSON and protobuf.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from farm.call import ModelInfo, Operation, TensorInfo
from farm.dispatcher.call_statistics import Duration, ModelStatistics
from farm.protocols.kserve.request import DEFAULT_PRIORITY, PRIORITY_LEVELS
from farm.protocols.kserve.shared_memory.regions import is_offered
from farm.protocols.kserve.tensors import BYTES, datatype_of
from farm.version import __version__
from farm.versions import VERSION, Numbered, numbered

SERVER_NAME = "farm"
PLATFORM = "farm_model"
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "generate",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "parameters",
    "schedule_policy",
    "sequence",
    "sequence(string_id)",
    "statistics",
    *(("system_shared_memory",) if is_offered() else ()),
)


def server_metadata() -> dict[str, Any]:
    """Return the server's name, version and extensions."""
    return {"name": SERVER_NAME, "version": __version__, "extensions": list(EXTENSIONS)}


def model_metadata(
    info: ModelInfo, name: str = "", versions: Iterable[str] = (VERSION,)
) -> dict[str, Any]:
    """Return a model's metadata; shapes have the batch axis as a leading -1.

    name: by which the client knows it, if it is not its own; versions: that it has. Raises
    UnsupportedFeature for tensors of a type that KServe does not have.
    """
    return {
        "name": name or info.name,
        "versions": list(versions),
        "platform": PLATFORM,
        "inputs": _tensors(info.inputs),
        "outputs": _tensors(info.outputs),
    }


def _tensors(tensors: Iterable[TensorInfo]) -> list[dict[str, Any]]:
    return [
        {"name": t.name, "datatype": datatype_of(t.dtype), "shape": [-1, *t.shape]} for t in tensors
    ]


def model_config(info: ModelInfo, name: str = "", *, reuses: bool = False) -> dict[str, Any]:
    """Return Triton's model configuration; `dims` exclude the batch axis.

    max_batch_size: rows that one evaluation takes; a request may bring more. sequence_batching: of
    a model that keeps a state for each sequence. reuses: whether the farm answers from its record,
    which it does for models with a version. Raises as `model_metadata`.
    """
    config: dict[str, Any] = {
        "name": name or info.name,
        "platform": PLATFORM,
        "backend": SERVER_NAME,
        "max_batch_size": info.max_batch,
        "input": _dims(info.inputs),
        "output": _dims(info.outputs),
        "model_transaction_policy": {"decoupled": Operation.EVALUATE not in info.operations},
    }
    for tensor, dims in zip(info.inputs, config["input"], strict=True):
        if tensor.format:
            dims["format"] = f"FORMAT_{tensor.format}"
    if info.max_batch > 1:
        config["dynamic_batching"] = {
            "preferred_batch_size": [info.max_batch],
            "max_queue_delay_microseconds": 0,
            "priority_levels": PRIORITY_LEVELS,
            "default_priority_level": DEFAULT_PRIORITY,
        }
    if reuses and info.version and info.repeatable:
        config["response_cache"] = {"enable": True}
    if info.sequences is not None:
        config["sequence_batching"] = {
            "max_sequence_idle_microseconds": round(1e6 * info.sequences.idle_s),
            "oldest": {"max_candidate_sequences": info.sequences.most},
        }
    return config


def _dims(tensors: Iterable[TensorInfo]) -> list[dict[str, Any]]:
    return [
        {"name": t.name, "data_type": config_type(t.dtype), "dims": list(t.shape)} for t in tensors
    ]


def config_type(dtype: str) -> str:
    """Return a datatype's name in a configuration, such as TYPE_FP64."""
    datatype = datatype_of(dtype)
    return "TYPE_STRING" if datatype == BYTES else f"TYPE_{datatype}"


COUNTERS: dict[str, tuple[str, Callable[[ModelStatistics], float]]] = {
    "nv_inference_request_success": ("Requests that succeeded", lambda m: m.success.count),
    "nv_inference_request_failure": ("Requests that failed", lambda m: m.fail.count),
    "nv_inference_count": ("Rows evaluated", lambda m: m.rows),
    "nv_inference_exec_count": ("Runs of the model, each for a batch", lambda m: m.executions),
    "nv_inference_request_duration_us": (
        "Microseconds from taking requests to their answers",
        lambda m: m.success.seconds * 1e6,
    ),
    "nv_inference_queue_duration_us": (
        "Microseconds that requests waited",
        lambda m: m.queue.seconds * 1e6,
    ),
    "nv_inference_compute_input_duration_us": ("Counted as compute_infer", lambda m: 0),
    "nv_inference_compute_infer_duration_us": (
        "Microseconds in the model",
        lambda m: m.compute.seconds * 1e6,
    ),
    "nv_inference_compute_output_duration_us": ("Counted as compute_infer", lambda m: 0),
    "nv_cache_num_hits_per_model": (
        "Rows answered from the record, or from another call's run",
        lambda m: m.reused,
    ),
    "nv_cache_num_misses_per_model": (
        "Rows that the record could have answered, but did not know",
        lambda m: m.missed,
    ),
}

NOTHING = ModelStatistics()


def statistics_of(
    models: Iterable[Numbered], known: Mapping[str, ModelStatistics]
) -> dict[str, list[dict[str, Any]]]:
    """Return the statistics of these models, with zeros for models without calls.

    Source: Triton's statistics extension. Its three parts of a computation are one here: decoding
    inputs and encoding outputs is not part of the model's run, and counts as no time. Its cache is
    the farm's record: hits and misses are counted in rows, without their time.
    """
    return {"model_stats": [_model(m, known.get(m.served_as, NOTHING)) for m in models]}


def _model(model: Numbered, told: ModelStatistics) -> dict[str, Any]:
    by_batch = sorted(told.by_batch.items())
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": round(told.last * 1000),
        "inference_count": told.rows,
        "execution_count": round(told.executions),
        "inference_stats": {
            "success": _duration(told.success),
            "fail": _duration(told.fail),
            "queue": _duration(told.queue),
            **_computed(told.compute),
            "cache_hit": {"count": told.reused, "ns": 0},
            "cache_miss": {"count": told.missed, "ns": 0},
        },
        "response_stats": {},
        "batch_stats": [{"batch_size": rows, **_computed(runs)} for rows, runs in by_batch],
        "memory_usage": [],
    }


def _computed(told: Duration) -> dict[str, Any]:
    compute = _duration(told)
    idle = {"count": compute["count"], "ns": 0}
    return {"compute_input": idle, "compute_infer": compute, "compute_output": idle}


def _duration(told: Duration) -> dict[str, int]:
    # Calls of one run each count their share of it, so that sums are exact except for rounding.
    return {"count": round(told.count), "ns": round(told.seconds * 1e9)}


def metrics_of(
    models: Collection[str],
    queues: Iterable[Mapping[str, Any]],
    statistics: Mapping[str, ModelStatistics],
    counter: str,
) -> Iterator[str]:
    """Yield the lines of metrics with Triton's names (source: its documentation, metrics.md).

    Dashboards made for it then work with a farm. Arguments: see `Endpoints`.
    """
    labels = {}
    for served_as in models:
        name, version, _ = numbered(served_as, models)
        name = name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        labels[served_as] = f'model="{name}",version="{version}"'
    waiting: Counter[str] = Counter()
    for queue in queues:
        waiting[queue["model"]] += queue["queued"]
    rows: list[tuple[str, str, str, Mapping[str, int]]] = [
        (name, text, counter, {m: round(value(statistics.get(m, NOTHING))) for m in labels})
        for name, (text, value) in COUNTERS.items()
    ]
    name = "nv_inference_pending_request_count"
    rows.append((name, "Requests that wait for a worker", "gauge", waiting))
    for name, text, kind, values in rows:
        yield f"# HELP {name} {text}\n# TYPE {name} {kind}"
        reason = ',reason="OTHER"' if name.endswith("_failure") else ""
        for model, of in labels.items():
            yield f"{name}{{{of}{reason}}} {values[model]}"
