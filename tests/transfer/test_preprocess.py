"""A prepared batch is what torch's own functions make of each image alone; crops depend on seed, epoch and index."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset

from rankscope.pipeline import run, simulate
from rankscope.transfer import prefetched, preprocess_pipeline, preprocessed, random_crops

from ..pipeline.virtual_time import VirtualTime

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def images(num: int, height: int, width: int, channels: int = 3, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num, height, width, channels), dtype=torch.uint8, generator=generator)


def reference(image: torch.Tensor, crop: list[int], size_px: tuple[int, int]) -> torch.Tensor:
    """One image, step by step: cut, resize, flip, normalise."""
    top, left, height, width, flipped = crop
    cut = image[top : top + height, left : left + width].permute(2, 0, 1).double()
    resized = interpolate(cut[None], size_px, mode="bilinear", align_corners=False)[0] / 255
    turned = resized.flip(2) if flipped else resized
    channels = len(image[0, 0])
    mean, std = (torch.tensor(column[:channels]).double()[:, None, None] for column in (MEAN, STD))
    return (turned - mean) / std


@settings(max_examples=60, deadline=None)
@given(
    sides=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    size_px=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    channels=st.sampled_from([1, 3]),
    seed=st.integers(0, 2**63 - 1),
    num=st.integers(0, 5),
)
def test_a_batch_is_prepared_as_each_image_alone(
    sides: tuple[int, int], size_px: tuple[int, int], channels: int, seed: int, num: int
) -> None:
    batch, crops = images(num, *sides, channels), random_crops(range(num), sides, seed=seed, epoch=3)
    found = preprocessed(batch, crops, size_px, MEAN[:channels], STD[:channels])
    assert (found.shape, found.dtype) == ((num, channels, *size_px), torch.float32)
    for image, crop, prepared in zip(batch, crops.tolist(), found, strict=True):
        torch.testing.assert_close(prepared.double(), reference(image, crop, size_px), rtol=1e-4, atol=1e-4)


# ---- what is drawn


def test_crops_depend_on_seed_epoch_and_index_alone() -> None:
    whole = random_crops(range(100), (64, 48), seed=5, epoch=2)
    parts = [random_crops(indices, (64, 48), seed=5, epoch=2) for indices in ([99, 3], np.arange(50), torch.arange(7))]
    assert torch.equal(parts[0], whole[[99, 3]])
    assert torch.equal(parts[1], whole[:50])
    assert torch.equal(parts[2], whole[:7])
    # seed and epoch are not added up: neither is one the other's
    others = [(5, 3), (6, 2), (2, 5), (4, 3), (6, 1)]
    tables = [random_crops(range(100), (64, 48), seed=seed, epoch=epoch) for seed, epoch in others]
    assert all((whole == table).all(1).sum() < 5 for table in tables)


def test_crops_are_spread_as_they_say() -> None:
    crops = random_crops(range(40_000), (1000, 1000)).double()
    top, left, height, width, flipped = crops[crops[:, 2] * crops[:, 3] < 0.54e6].T  # which no side has cut
    share, ratio = height * width / 1e6, (width / height).log() / np.log(4 / 3)
    assert share.numel() / 40_000 == pytest.approx(0.5, abs=0.02)
    columns = {"area": (share, 0.08, 0.54), "ratio": (ratio, -1, 1)}
    columns |= {"top": (top / (1001 - height), 0, 1), "left": (left / (1001 - width), 0, 1)}
    for name, (values, low, high) in columns.items():
        assert low - 0.01 <= float(values.min()) <= float(values.max()) <= high + 0.01, name
        assert float(values.mean()) == pytest.approx((low + high) / 2, abs=0.02), name
        assert float(values.std()) == pytest.approx((high - low) / 12**0.5, abs=0.02), name
    assert float(flipped.mean()) == pytest.approx(0.5, abs=0.02)
    together = torch.corrcoef(torch.stack([values for values, _, _ in columns.values()] + [flipped]))
    assert float((together - torch.eye(5)).abs().max()) < 0.05


# ---- on CPU workers and on the device


class Pictures(Dataset[Any]):
    """Images with their crops, prepared by whoever reads them or left to be prepared."""

    def __init__(self, prepare: bool) -> None:
        self.data, self.prepare = images(24, 40, 30), prepare

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, indices: list[int]) -> Any:
        batch, crops = self.data[indices], random_crops(indices, (40, 30), seed=1)
        return preprocessed(batch, crops, (16, 16)) if self.prepare else (batch, crops)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_workers_and_the_loop_prepare_the_same() -> None:
    def loader(prepare: bool, num_workers: int) -> Any:
        return prefetched(
            DataLoader(Pictures(prepare), batch_size=5, num_workers=num_workers, collate_fn=lambda batch: batch), "cpu"
        )

    there = [preprocessed(*batch, (16, 16)) for batch in loader(False, 0)]
    workers = list(loader(True, 2))
    assert len(there) == len(workers) == 5
    for one, other in zip(there, workers, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_gpu_prepares_the_same() -> None:
    loader = DataLoader(Pictures(False), batch_size=5, collate_fn=lambda batch: batch)
    expected = [preprocessed(*batch, (16, 16), MEAN, STD) for batch in loader]
    batches = prefetched(loader, "cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = [preprocessed(*batch, (16, 16), MEAN, STD) for batch in batches]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-4)


def test_workers_that_prepare_are_the_bottleneck_where_the_model_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, times_s = images(16, 120, 120), [0.003 + 0.001 * (number % 3) for number in range(8)]
    model = preprocess_pipeline("workers", 0.0, 0.0, 0.0, min(times_s) / 50, 1)
    model = model.changed("load and preprocess", service_s=times_s)
    assert model.bottleneck == "load and preprocess"
    clock = VirtualTime(monkeypatch, len(model.stages))

    def prepare(number: int) -> torch.Tensor:
        clock.sleep(times_s[number])
        return preprocessed(batch, random_crops(range(16 * number, 16 * number + 16), (120, 120)), (64, 64))

    real = run(model.changed("load and preprocess", fn=prepare), range(8))
    busy = real.utilisation()
    assert max(busy, key=lambda lane: busy[lane]) == (0, "load and preprocess")
    assert real.makespan_s == pytest.approx(simulate(model, 8).makespan_s, abs=1e-6)


# ---- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"indices": [-1]}, "indices must be a list of whole numbers of at least 0, got [-1]"),
        ({"indices": 3}, "indices must be a list of whole numbers of at least 0, got 3"),
        ({"image_px": (4, 0)}, "image_px must be a whole number of at least 1, got 0"),
        ({"image_px": 4}, "image_px must be a list, got 4"),
        ({"image_px": (4, 4, 4)}, "image_px must be height and width, got (4, 4, 4)"),
        ({"seed": -1}, "seed must be a whole number from 0 to"),
        ({"epoch": 1.5}, "epoch must be a whole number from 0 to"),
    ],
)
def test_bad_crops(options: dict[str, Any], message: str) -> None:
    given_: dict[str, Any] = {"indices": [0], "image_px": (4, 4), **options}
    with pytest.raises(ValueError, match=re.escape(message)):
        random_crops(given_.pop("indices"), given_.pop("image_px"), **given_)


CROP = torch.tensor([[0, 0, 4, 4, 0]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": images(1, 4, 4).float()}, "images must be uint8 of shape (image, height, width, channel), got"),
        ({"images": [1]}, "images must be a Tensor, got [1]"),
        ({"crops": CROP.float()}, "crops must be int64 of shape (1, 5), as random_crops gives them, got torch.float32"),
        ({"crops": CROP.repeat(2, 1)}, "crops must be int64 of shape (1, 5), as random_crops gives them, got"),
        ({"crops": CROP + torch.tensor([1, 0, 0, 0, 0])}, "crops must lie in images of (4, 4) pixels, got [1, 0, 4, 4"),
        ({"size_px": (0, 4)}, "size_px must be a whole number of at least 1, got 0"),
        ({"mean": (0.1, 0.2)}, "mean must be one number, or one for each of 3 channels, got (0.1, 0.2)"),
        ({"std": (0.0,)}, "std must be a finite number above 0, got 0.0"),
    ],
)
def test_bad_batches(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        preprocessed(**{"images": images(1, 4, 4), "crops": CROP, "size_px": (2, 2), **change})
