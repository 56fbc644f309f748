"""A transformer's training step under `fully_shard`, described by hand: the example of notebook 08."""

from __future__ import annotations

from ..cluster import Link
from ..collectives import closed_form
from ..common.checks import number, of_type, truth, whole
from ..train.fsdp import ModuleStep, ShardedLayer

WIDTH = 4096
NUM_WORDS = 32_000
MOST_TENSOR_RANKS = 32
_MOST_TOKENS = 1 << 24  # hundreds of times what one GPU has memory for
_MOST_BLOCKS = 200  # more than the largest models have, such as the 126 of Llama 3 405B
_BYTES_OF_16_BITS = 2
_FLOAT32_TO_16_BITS = 2  # what a step states for float32, compared with what 16-bit training keeps


def transformer(
    num_tokens: int,
    num_blocks: int = 16,
    *,
    flops_per_s: float = 400e12,
    recompute: bool = False,
    tensor_ranks: int = 1,
    tensor_link: Link | None = None,
) -> ModuleStep:
    """Return the step of a GPU with `num_tokens` tokens: an embedding, blocks of width 4096, and a head.

    A block has an "attn" of 4·width² and an "mlp" of 8·width² parameters. A pass takes 2 operations per parameter and
    token, and backward twice as many; the products of attention itself are left out. In 16-bit precision, a block
    keeps 34·tokens·width bytes for backward: equation 2 of Korthikanti and others, 2022
    (https://arxiv.org/abs/2205.05198), without attention's matrix. The step states twice that, because its parameters
    are float32, and `fsdp.predict` scales activations to ``param_dtype``. With `recompute`, it keeps only its input,
    and backward begins with another forward.

    If `tensor_ranks` is above 1, this number of GPUs split each layer and process their tokens together: Megatron-LM's
    tensor parallelism (https://arxiv.org/abs/1909.08053), here with the sequence parallelism of Korthikanti and others.
    The step is that of one of these GPUs. It computes and keeps as much as without tensor parallelism, but has fewer
    parameters. After each part of a block, in forward and in backward, the 16-bit activations of all their tokens are
    all-reduced in a ring over `tensor_link`, and likewise after the embedding in forward and after the head in
    backward. Nothing hides these all-reduces, so their times are part of the layers' times.

    Raises ValueError if a number is out of range, or if `tensor_ranks` is above 1 without a link.

    >>> step = transformer(8192)
    >>> step
    <ModuleStep: 34 parameters, 3483369472 elements, 412 ms of computing>
    >>> round(transformer(8192, recompute=True).backward_s / step.backward_s, 2)
    1.48
    """
    num_tokens = whole("num_tokens", num_tokens, 1, _MOST_TOKENS)
    num_blocks = whole("num_blocks", num_blocks, 1, _MOST_BLOCKS)
    flops_per_s = number("flops_per_s", flops_per_s, above=0)
    recompute = truth("recompute", recompute)
    tensor_ranks = whole("tensor_ranks", tensor_ranks, 1, MOST_TENSOR_RANKS)
    if MOST_TENSOR_RANKS % tensor_ranks:
        raise ValueError(f"tensor_ranks must be a power of two, so that it divides the layers, got {tensor_ranks}")
    allreduce_s = 0.0
    if tensor_ranks > 1:
        link = of_type("tensor_link", tensor_link, Link)
        allreduced_bytes = _BYTES_OF_16_BITS * num_tokens * tensor_ranks * WIDTH
        allreduce_s = float(closed_form("allreduce", "ring", tensor_ranks, allreduced_bytes, link))
    # Bytes that each part of a block keeps for backward, per token and unit of width. Of the 34 in all, attention keeps
    # 11, the mlp 19, and the layer norm before each of them 2. With `recompute`, only the block's input is kept.
    kept_per_value = {"attn": 13, "mlp": 21}
    if recompute:
        kept_per_value = {"attn": _BYTES_OF_16_BITS, "mlp": 0}
    num_rows = NUM_WORDS // tensor_ranks
    # A look-up itself takes next to no time.
    layers = [ShardedLayer("embed", (num_rows * WIDTH,), forward_s=allreduce_s)]
    for block in range(num_blocks):
        for part, num_parameters in (("attn", 4 * WIDTH**2), ("mlp", 8 * WIDTH**2)):
            # With tensor parallelism, a GPU computes 1/tensor_ranks of the part for tensor_ranks times as many tokens.
            computing_s = 2 * num_parameters * num_tokens / flops_per_s
            forward_s = computing_s + allreduce_s
            backward_s = 2 * computing_s + allreduce_s
            if recompute:
                backward_s += forward_s
            kept_bytes = _FLOAT32_TO_16_BITS * kept_per_value[part] * num_tokens * WIDTH
            own_parameters = num_parameters // tensor_ranks
            layers.append(
                ShardedLayer(
                    f"blocks.{block}.{part}",
                    (own_parameters,),
                    forward_s=forward_s,
                    backward_s=backward_s,
                    activation_bytes=kept_bytes,
                )
            )
    head_s = 2 * NUM_WORDS * WIDTH * num_tokens / flops_per_s
    kept_of_head = num_tokens * (_BYTES_OF_16_BITS * WIDTH + 4 * NUM_WORDS)  # its input, and the scores in float32
    layers.append(
        ShardedLayer(
            "head",
            (num_rows * WIDTH,),
            forward_s=head_s,
            backward_s=2 * head_s + allreduce_s,
            activation_bytes=_FLOAT32_TO_16_BITS * kept_of_head,
        )
    )
    return ModuleStep.of_layers(layers)
