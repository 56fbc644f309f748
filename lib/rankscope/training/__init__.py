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
from ..ddp.architectures import ARCHITECTURES, architecture_step
from ..ddp.buckets import Bucket, BucketError, DDPBuckets, assign_buckets, ddp_buckets, parameter_specs
from ..ddp.cap_sweep import CapSweep, MeasuredCap, load_sweeps, save_sweeps
from ..ddp.contention import OverlappedStep, fit_contention
from ..ddp.cost import CostTable, allreduce_cost
from ..ddp.ddp_run import DDPRun, ObservedStep
from ..ddp.followed import FollowedSteps
from ..ddp.launches import default_buckets
from ..ddp.local_step import Contention, LocalStep, ParameterSpec
from ..ddp.overlap import simulate_step, step_seconds
from ..ddp.recommend import Recommendation, recommend_bucket_cap
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
    from ..ddp.measure_followed import follow_steps
    from ..ddp.measure_steps import measure_ddp, measure_local_step
    from ..ddp.measure_sweep import measure_allreduce, measure_contention, sweep_caps
    from ..gradients.demos import Work
    from ..parameter_server.hogwild import Counted, HogwildRun, count_together, train_hogwild
    from ..parameter_server.parameter_server import measure_calls, train_alone, train_workers, with_parameters
    from ..parameter_server.sharing import PASSED_BY, Passing, measure_passing
    from ..pipeline_parallel.measure_pipeline import PipelineRun, pipeline_model, run_pipelines
    from ..uneven.measure_join import compare_uneven, measure_uneven
    from ..zero.measure_zero import LiveMemory, live_memory
    from ..zero.measure_zero_resume import resume_difference

__all__ = [
    "ARCHITECTURES",
    "ESTIMATORS",
    "PASSED_BY",
    "PIPELINES",
    "WAYS",
    "Bucket",
    "BucketError",
    "CapSweep",
    "Contention",
    "CostTable",
    "Counted",
    "DDPBuckets",
    "DDPRun",
    "DissectedStep",
    "Estimator",
    "FollowedSteps",
    "HogwildRun",
    "LiveMemory",
    "LocalStep",
    "MeasuredCap",
    "ObservedStep",
    "OverlappedStep",
    "ParameterSpec",
    "Passing",
    "PipelineError",
    "PipelineRun",
    "PipelineSchedule",
    "Recommendation",
    "ServerRun",
    "StepCosts",
    "StepSizes",
    "StepTraffic",
    "UnevenComparison",
    "UnevenError",
    "UnevenRun",
    "Work",
    "ZeroMemory",
    "ZeroTraffic",
    "activations_in_flight",
    "allreduce_bytes",
    "allreduce_cost",
    "architecture_step",
    "assign_buckets",
    "bubble_share",
    "chunk_sizes",
    "compare_uneven",
    "count_together",
    "data_parallel_messages",
    "data_parallel_traffic",
    "ddp_buckets",
    "ddp_traffic",
    "default_buckets",
    "dissect_data_parallel",
    "files_epoch",
    "fit_contention",
    "follow_steps",
    "gpipe",
    "gradient_scale",
    "interleaved_1f1b",
    "live_memory",
    "load_sweeps",
    "measure_allreduce",
    "measure_calls",
    "measure_contention",
    "measure_ddp",
    "measure_local_step",
    "measure_passing",
    "measure_uneven",
    "most_in_flight",
    "one_f_one_b",
    "parameter_specs",
    "partition_imbalance",
    "pipeline_model",
    "pipeline_traffic",
    "predicted_memory",
    "predicted_traffic",
    "recommend_bucket_cap",
    "resume_difference",
    "run_pipelines",
    "sample_weights",
    "save_sweeps",
    "server_bytes",
    "simulate_data_parallel",
    "simulate_ddp_in_turn",
    "simulate_pipeline",
    "simulate_step",
    "simulate_workers",
    "simulated_bubble",
    "step_seconds",
    "sweep_caps",
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
        "Work": ".gradients.demos",
        "compare_uneven": ".uneven.measure_join",
        "count_together": ".parameter_server.hogwild",
        "dissect_data_parallel": ".data_parallel.data_parallel",
        "follow_steps": ".ddp.measure_followed",
        "live_memory": ".zero.measure_zero",
        "measure_allreduce": ".ddp.measure_sweep",
        "measure_calls": ".parameter_server.parameter_server",
        "measure_contention": ".ddp.measure_sweep",
        "measure_ddp": ".ddp.measure_steps",
        "measure_local_step": ".ddp.measure_steps",
        "measure_passing": ".parameter_server.sharing",
        "measure_uneven": ".uneven.measure_join",
        "pipeline_model": ".pipeline_parallel.measure_pipeline",
        "resume_difference": ".zero.measure_zero_resume",
        "run_pipelines": ".pipeline_parallel.measure_pipeline",
        "sweep_caps": ".ddp.measure_sweep",
        "train_alone": ".parameter_server.parameter_server",
        "train_hogwild": ".parameter_server.hogwild",
        "train_workers": ".parameter_server.parameter_server",
        "with_parameters": ".parameter_server.parameter_server",
    },
)
