"""`CATALOGUE`: every explorer with the line that names it and its notebook, for the gallery and the site."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """`explorers.<name>`: what one explores there, and the notebook (its file's stem) that ends in it.

    >>> CATALOGUE[0]
    Entry(name='samplers', title='Which rank reads which sample', notebook='01_who_reads_what')
    """

    name: str
    title: str
    notebook: str


CATALOGUE = (
    Entry("samplers", "Which rank reads which sample", "01_who_reads_what"),
    Entry("pipeline", "How a batch arrives", "03_how_a_batch_arrives"),
    Entry("parts", "Trainers on part files", "04_part_files"),
    Entry("allreduce", "An allreduce, step by step", "06_allreduce_variants"),
    Entry("machine", "Recorded machines against the model", "07_model_and_machine"),
    Entry("transfers", "Copies to the GPU, and the loop", "08_transfers"),
    Entry("ddp", "DDP's buckets and overlap", "09_ddp_buckets_and_overlap"),
    Entry("zero", "What ZeRO leaves on a rank", "11_zero_memory"),
    Entry("uneven", "Ranks that run out of batches", "12_uneven_inputs"),
    Entry("pipeline_parallel", "Pipelines and their bubbles", "13_other_ways"),
)
