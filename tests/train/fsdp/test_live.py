"""`LiveCounter` counts storages that get the address of one that is gone."""

from __future__ import annotations

import torch

from rankscope.train.fsdp.live import LiveCounter


def test_a_tensor_at_the_address_of_a_deleted_input_counts() -> None:
    addresses: list[int] = []
    outputs = []
    counter = LiveCounter({})
    with counter:
        batch = torch.tensor([1.0] * 1000)  # no operator makes it, so it counts as an input
        outputs.append(batch + 1)
        address = batch.untyped_storage()._cdata
        del batch
        while address not in addresses and len(outputs) < 10_000:
            outputs.append(torch.ones(500))
            addresses.append(outputs[-1].untyped_storage()._cdata)
    assert address in addresses, "no tensor got the address, so this test has shown nothing"
    assert counter.input_bytes == 4000
    assert counter.total == sum(output.nbytes for output in outputs)
