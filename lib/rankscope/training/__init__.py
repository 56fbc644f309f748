"""What a step costs: buckets, overlap of backward and allreduce, and the other ways to share the work.

What trains or measures needs torch, and is brought in when first asked for; the demos are modules of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..late import late_names
from .architectures import ARCHITECTURES, architecture_step
from .buckets import Bucket, BucketError, DDPBuckets, assign_buckets, ddp_buckets, parameter_specs
from .cap_sweep import CapSweep, MeasuredCap, load_sweeps, save_sweeps
from .contention import OverlappedStep, fit_contention
from .cost import CostTable, allreduce_cost
from .data_parallel_model import (
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
from .ddp_run import DDPRun, ObservedStep
from .followed import FollowedSteps
from .launches import default_buckets
from .local_step import Contention, LocalStep, ParameterSpec
from .overlap import simulate_step, step_seconds
from .parameter_server_model import ServerRun, allreduce_bytes, server_bytes, simulate_workers
from .pipeline_parallel import PipelineError, PipelineSchedule, activations_in_flight, verify_pipeline
from .pipeline_schedules import PIPELINES, bubble_share, gpipe, interleaved_1f1b, most_in_flight, one_f_one_b
from .pipeline_simulate import pipeline_traffic, simulate_pipeline, simulated_bubble
from .recommend import Recommendation, recommend_bucket_cap
from .uneven import files_epoch, gradient_scale, sample_weights, uneven_reads, uneven_steps
from .uneven_run import UnevenComparison, UnevenError, UnevenRun
from .zero import ZeroMemory, zero_memory
from .zero_estimators import ESTIMATORS, Estimator
from .zero_partition import partition_imbalance, zero_redundancy_partition
from .zero_traffic import ZeroTraffic, zero_traffic
from .zero_ways import WAYS, predicted_memory, predicted_traffic

if TYPE_CHECKING:
    from .data_parallel import DissectedStep, dissect_data_parallel
    from .demos import Work
    from .hogwild import Counted, HogwildRun, count_together, train_hogwild
    from .measure_followed import follow_steps
    from .measure_join import compare_uneven, measure_uneven
    from .measure_pipeline import PipelineRun, pipeline_model, run_pipelines
    from .measure_steps import measure_ddp, measure_local_step
    from .measure_sweep import measure_allreduce, measure_contention, sweep_caps
    from .measure_zero import LiveMemory, live_memory
    from .measure_zero_resume import resume_difference
    from .parameter_server import measure_calls, train_alone, train_workers, with_parameters
    from .sharing import PASSED_BY, Passing, measure_passing

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

__getattr__ = late_names(
    __name__,
    {
        "Counted": "hogwild",
        "DissectedStep": "data_parallel",
        "HogwildRun": "hogwild",
        "LiveMemory": "measure_zero",
        "PASSED_BY": "sharing",
        "Passing": "sharing",
        "PipelineRun": "measure_pipeline",
        "Work": "demos",
        "compare_uneven": "measure_join",
        "count_together": "hogwild",
        "dissect_data_parallel": "data_parallel",
        "follow_steps": "measure_followed",
        "live_memory": "measure_zero",
        "measure_allreduce": "measure_sweep",
        "measure_calls": "parameter_server",
        "measure_contention": "measure_sweep",
        "measure_ddp": "measure_steps",
        "measure_local_step": "measure_steps",
        "measure_passing": "sharing",
        "measure_uneven": "measure_join",
        "pipeline_model": "measure_pipeline",
        "resume_difference": "measure_zero_resume",
        "run_pipelines": "measure_pipeline",
        "sweep_caps": "measure_sweep",
        "train_alone": "parameter_server",
        "train_hogwild": "hogwild",
        "train_workers": "parameter_server",
        "with_parameters": "parameter_server",
    },
)
