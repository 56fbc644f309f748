"""Public functions, called as people naturally get it wrong: one line that names what was wrong or what to call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from rankscope import explorers, figures
from rankscope.box import Profile
from rankscope.cluster import Cluster, Link
from rankscope.collectives import Schedule, best, build, run_local, verify
from rankscope.diagnose import diagnose, explain_hang
from rankscope.pipeline import Pipeline, Stage, advise, idle_share, record_dataloader, run
from rankscope.pipeline import simulate as simulate_pipeline
from rankscope.sampling import Assignment, DistributedSampler, KeyedSampler, assign, audit, audit_loader
from rankscope.timeline import Span, Timeline
from rankscope.train import ddp, fsdp
from rankscope.train import pipeline_parallel as pp

ROWS: Any = list(range(10**5))  # whose text is far longer than a line
SAMPLER: Any = DistributedSampler(10, 2, 0)
LOADER: Any = DataLoader([1, 2])  # type: ignore[arg-type]
LINK: Any = Link(1e-5, 1e9)
CLUSTER: Any = Cluster.uniform(4, LINK)
RING: Any = build("allreduce", "ring", 4)
STAGES: Any = [Stage("read", fn=abs)]
PATH: Any = Pipeline(STAGES)
PLAN: Any = pp.build("GPipe", 2, 2)
LINEAR: Any = nn.Linear(2, 2)
LOCAL: Any = ddp.LocalStep.modelled([4, 8], 0.2)
TEXT: Any = "text"
ZEROS: Any = torch.zeros(8)

WRONG: list[tuple[str, Callable[[], object]]] = [
    ("size must be a whole number", lambda: assign(ROWS, 4)),
    ("size must be a whole number", lambda: KeyedSampler(ROWS)),
    ("all ranks", lambda: assign(10, 4, rank=0)),
    ("with_loader", lambda: assign(10, 4, batch_size=8)),
    ("num_ranks", lambda: assign(10, num_replicas=4)),  # type: ignore[call-arg]
    ("Assignment.collect", lambda: audit([SAMPLER, SAMPLER])),
    ("Assignment.collect", lambda: audit(SAMPLER)),
    ("Assignment.collect", lambda: audit(LOADER)),
    ("'size'", lambda: Assignment.collect([SAMPLER, SAMPLER])),  # type: ignore[call-arg]
    ("short_batch", lambda: audit(assign(10, 4)).check(allow=["short_batch"])),
    ("DataLoader", lambda: audit_loader([SAMPLER])),
    ("latency in seconds", lambda: Link(25e9, 20e-6)),
    ("alpha_s", lambda: Link("20us", "25GB/s")),  # type: ignore[arg-type]
    ("intra must be a Link", lambda: Cluster(2, 4, 25e9, 25e9)),  # type: ignore[arg-type]
    ("collective must be", lambda: best(1e6, CLUSTER, "all_reduce")),
    ("Schedule", lambda: verify([RING])),  # type: ignore[arg-type]
    ("Tensor", lambda: run_local(RING, [[0.0] * 8] * 4)),  # type: ignore[list-item]
    ("one per rank", lambda: run_local(RING, ZEROS)),
    ("ranks=3", lambda: Schedule.from_text("allreduce mine ranks=2 ranks=3 chunks=1")),
    ("chunks=2", lambda: Schedule.from_text("allreduce mine ranks=2 chunks=1 chunks=2")),
    ("text must be a str", lambda: Schedule.from_text(RING)),
    ("workers", lambda: PATH.changed("read", workers=2)),
    ("range(5)", lambda: run(PATH, 5)),  # type: ignore[arg-type]
    ("Pipeline", lambda: run(STAGES, range(5))),
    ("Pipeline", lambda: simulate_pipeline(STAGES, 5)),
    ("items must be a whole number", lambda: simulate_pipeline(Pipeline([Stage("read", 1.0)]), range(5))),  # type: ignore[arg-type]
    ("simulate_parts", lambda: idle_share(PATH)),
    ("DataLoader", lambda: record_dataloader(ROWS)),
    ("LoaderProfile", lambda: advise(LOADER)),
    ("sizes must be a list", lambda: ddp.LocalStep.modelled(LINEAR, 0.2)),
    ("ddp.cost", lambda: ddp.simulate(LOCAL, LINK)),
    ("Module", lambda: ddp.buckets(lambda module: module, LINEAR)),  # type: ignore[arg-type]
    ("function of the module", lambda: fsdp.observe(LINEAR, ZEROS, num_ranks=2)),  # type: ignore[arg-type]
    ("optimizer", lambda: fsdp.observe(LINEAR, abs, num_ranks=2, optimizer=torch.optim.Adam(LINEAR.parameters()))),  # type: ignore[arg-type]
    ("such as simulate returns", lambda: pp.bubble_share(PLAN)),
    ("such as build returns", lambda: pp.messages(TEXT)),
    ("h100_8", lambda: Profile.load("bank:h100")),
    ("read_traces", lambda: diagnose("traces/")),  # type: ignore[arg-type]
    ("read_traces", lambda: diagnose(["rank0.json"])),  # type: ignore[list-item]
    ("read_dumps", lambda: explain_hang("Traceback …")),  # type: ignore[arg-type]
    ("Assignment", lambda: figures.assignment(SAMPLER)),
    ("Timeline", lambda: figures.timeline([Span(0, "a", "b", 0, 0.0, 1.0)])),
    ("num_ranks", lambda: explorers.samplers(ranks=8)),
    ("num_ranks", lambda: explorers.samplers(num_ranks="8")),
    ("profiles must be a dict", lambda: explorers.ddp(Profile.load("bank:h100_8"))),
    ("lane", lambda: Timeline([Span(0, "a", "b", 0, 0.0, 1.0)])),  # type: ignore[call-arg]
]


@pytest.mark.parametrize(("word", "call"), WRONG, ids=[f"{place} {word}" for place, (word, _) in enumerate(WRONG)])
def test_a_wrong_call_is_one_line_that_names_what_to_change(word: str, call: Callable[[], object]) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
