"""What DistributedDataParallel and its relatives do to a training step, a subpackage for each.

`ddp` and `zero` keep a replica on every rank, `data_parallel` drives several GPUs from one process, `pipeline_parallel`
splits the layers, `uneven` is about ranks that run out of batches, and `gradients` audits and combines gradients.
"""
