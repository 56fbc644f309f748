"""Rules of thumb for bytes per parameter, by their terms: some totals are equal, and count different things."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimator:
    """Bytes per parameter that a rule of thumb counts, by term; `gradient_copy` is a float32 one beside the gradients.

    >>> ESTIMATORS[3].name, ESTIMATORS[3].total_bytes
    ('ZeRO paper, mixed', 16)
    """

    name: str
    parameters: int
    gradients: int
    master_copy: int
    gradient_copy: int
    optimizer_states: int
    source: str

    @property
    def total_bytes(self) -> int:
        return sum((self.parameters, self.gradients, self.master_copy, self.gradient_copy, self.optimizer_states))


# Rules of thumb, by rising bytes per parameter.
ESTIMATORS = (
    Estimator("Adam's states alone", 0, 0, 0, 0, 8, "Hugging Face, Model training anatomy: optimizer states"),
    Estimator("all in bfloat16", 2, 2, 0, 0, 4, "torch.optim.Adam: states have the parameters' dtype"),
    Estimator("all in float32", 4, 4, 0, 0, 8, "torch.optim.Adam; Megatron Core, Distributed Optimizer: fp32, fp32"),
    Estimator("ZeRO paper, mixed", 2, 2, 4, 0, 8, "Rajbhandari et al., 2020: 2 + 2 + 12"),
    Estimator("float32 gradients", 2, 4, 4, 0, 8, "Hugging Face, anatomy: 6 + 8 + 4; Megatron Core: bf16, fp32"),
    Estimator("DeepSpeed stage 3", 2, 0, 4, 4, 8, "DeepSpeed, estimate_zero3_…: 18 (gradients are the layer's)"),
    Estimator(
        "float16 gradients and a copy", 2, 2, 4, 4, 8, "DeepSpeed, estimate_zero2_…: 4 + 16/N; Megatron Core: fp16"
    ),
)
