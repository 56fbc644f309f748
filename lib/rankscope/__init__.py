"""A scope on what each rank of a data-parallel training job does.

Which samples it reads, how its batches arrive, how its gradients meet the others', and what a step then costs:
predicted by a model, executed for real, and shown side by side. Each room is imported by its own name, as in
``from rankscope.sampling import assign``; importing this package alone loads none of them.
"""

__version__ = "0.1.0"
