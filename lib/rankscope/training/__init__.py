"""What a step costs: buckets, overlap of backward and allreduce, and the other ways to share the work.

What trains or measures needs torch, and is brought in when first asked for; the demos are modules of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..data_parallel.data_parallel_model import (
    StepCosts,
    StepSizes,
    StepTraffic,
    chunk_sizes,
    data_parallel_messages,
    data_parallel_traffic,
    ddp_traffic,
    simulate_data_parallel,
    simulate_ddp_in_turn,
)
from ..parameter_server.parameter_server_model import ServerRun, allreduce_bytes, server_bytes, simulate_workers
from ..pipeline_parallel.pipeline_parallel import (
    PipelineError,
    PipelineSchedule,
    activations_in_flight,
    verify_pipeline,
)
from ..pipeline_parallel.pipeline_schedules import (
    PIPELINES,
    bubble_share,
    gpipe,
    interleaved_1f1b,
    most_in_flight,
    one_f_one_b,
)
from ..pipeline_parallel.pipeline_simulate import pipeline_traffic, simulate_pipeline, simulated_bubble
from ..uneven.uneven import files_epoch, gradient_scale, sample_weights, uneven_reads, uneven_steps
from ..uneven.uneven_run import UnevenComparison, UnevenError, UnevenRun
from ..values.lazy import lazy
from ..zero.zero import ZeroMemory, zero_memory
from ..zero.zero_estimators import ESTIMATORS, Estimator
from ..zero.zero_partition import partition_imbalance, zero_redundancy_partition
from ..zero.zero_traffic import ZeroTraffic, zero_traffic
from ..zero.zero_ways import WAYS, predicted_memory, predicted_traffic

if TYPE_CHECKING:
    from ..data_parallel.data_parallel import DissectedStep, dissect_data_parallel
    from ..parameter_server.hogwild import Counted, HogwildRun, count_together, train_hogwild
    from ..parameter_server.parameter_server import measure_calls, train_alone, train_workers, with_parameters
    from ..parameter_server.sharing import PASSED_BY, Passing, measure_passing
    from ..pipeline_parallel.measure_pipeline import PipelineRun, pipeline_model, run_pipelines
    from ..uneven.measure_join import compare_uneven, measure_uneven
    from ..zero.measure_zero import LiveMemory, live_memory
    from ..zero.measure_zero_resume import resume_difference

__all__ = [
    "ESTIMATORS",
    "PASSED_BY",
    "PIPELINES",
    "WAYS",
    "Counted",
    "DissectedStep",
    "Estimator",
    "HogwildRun",
    "LiveMemory",
    "Passing",
    "PipelineError",
    "PipelineRun",
    "PipelineSchedule",
    "ServerRun",
    "StepCosts",
    "StepSizes",
    "StepTraffic",
    "UnevenComparison",
    "UnevenError",
    "UnevenRun",
    "ZeroMemory",
    "ZeroTraffic",
    "activations_in_flight",
    "allreduce_bytes",
    "bubble_share",
    "chunk_sizes",
    "compare_uneven",
    "count_together",
    "data_parallel_messages",
    "data_parallel_traffic",
    "ddp_traffic",
    "dissect_data_parallel",
    "files_epoch",
    "gpipe",
    "gradient_scale",
    "interleaved_1f1b",
    "live_memory",
    "measure_calls",
    "measure_passing",
    "measure_uneven",
    "most_in_flight",
    "one_f_one_b",
    "partition_imbalance",
    "pipeline_model",
    "pipeline_traffic",
    "predicted_memory",
    "predicted_traffic",
    "resume_difference",
    "run_pipelines",
    "sample_weights",
    "server_bytes",
    "simulate_data_parallel",
    "simulate_ddp_in_turn",
    "simulate_pipeline",
    "simulate_workers",
    "simulated_bubble",
    "train_alone",
    "train_hogwild",
    "train_workers",
    "uneven_reads",
    "uneven_steps",
    "verify_pipeline",
    "with_parameters",
    "zero_memory",
    "zero_redundancy_partition",
    "zero_traffic",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Counted": ".parameter_server.hogwild",
        "DissectedStep": ".data_parallel.data_parallel",
        "HogwildRun": ".parameter_server.hogwild",
        "LiveMemory": ".zero.measure_zero",
        "PASSED_BY": ".parameter_server.sharing",
        "Passing": ".parameter_server.sharing",
        "PipelineRun": ".pipeline_parallel.measure_pipeline",
        "compare_uneven": ".uneven.measure_join",
        "count_together": ".parameter_server.hogwild",
        "dissect_data_parallel": ".data_parallel.data_parallel",
        "live_memory": ".zero.measure_zero",
        "measure_calls": ".parameter_server.parameter_server",
        "measure_passing": ".parameter_server.sharing",
        "measure_uneven": ".uneven.measure_join",
        "pipeline_model": ".pipeline_parallel.measure_pipeline",
        "resume_difference": ".zero.measure_zero_resume",
        "run_pipelines": ".pipeline_parallel.measure_pipeline",
        "train_alone": ".parameter_server.parameter_server",
        "train_hogwild": ".parameter_server.hogwild",
        "train_workers": ".parameter_server.parameter_server",
        "with_parameters": ".parameter_server.parameter_server",
    },
)
