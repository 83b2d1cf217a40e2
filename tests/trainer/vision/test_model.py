from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from hoptui_trainer.vision.config import preset_config
from hoptui_trainer.vision.images import Images, Resident
from hoptui_trainer.vision.model import Shape, ViT, patches
from hoptui_trainer.vision.state import model_shape
from tests.trainer.vision.operations import Operations

TINY_SHAPE = Shape(
    image_size=8, channels=3, classes=5, patch_size=4, d_model=32, layers=2, heads=2, mlp_width=128
)


def random_images(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=generator)


def preset_shape(name: str) -> Shape:
    config = preset_config(name)
    return model_shape(config, Resident(name, 1000, Images(torch.zeros(1, 3, 224, 224), torch.zeros(1))))


def excited(model: ViT) -> ViT:
    """With a head that says something: it begins as zeros."""
    with torch.no_grad():
        model.head.weight.normal_(generator=torch.Generator().manual_seed(1))
    return model


def test_a_patch_holds_its_square_of_every_channel() -> None:
    images = random_images(2)
    cut = patches(images, 4)
    assert cut.shape == (2, 4, 48)
    square = images[1, :, 4:8, 0:4]  # third patch: second row, first column
    assert torch.allclose(cut[1, 2].view(3, 4, 4), square.float() / 127.5 - 1)
    assert cut.min() >= -1
    assert cut.max() <= 1


def test_it_begins_by_knowing_nothing() -> None:
    logits = ViT(TINY_SHAPE, seed=0)(random_images(3))
    assert logits.shape == (3, 5)
    assert torch.equal(logits, torch.zeros(3, 5))


def test_one_seed_gives_one_model_and_another_seed_another() -> None:
    first, again, other = (ViT(TINY_SHAPE, seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["patches_in.weight"], other["patches_in.weight"])


def test_an_image_is_judged_alone_and_the_place_of_a_patch_matters() -> None:
    model, images = excited(ViT(TINY_SHAPE, seed=0)), random_images(4)
    together = model(images)
    assert torch.allclose(model(images[2:3]), together[2:3], atol=1e-5)
    swapped = images[:, :, :, [4, 5, 6, 7, 0, 1, 2, 3]]
    assert not torch.allclose(model(swapped), together, atol=1e-2)


def test_the_cost_of_vit_b_is_the_published_one() -> None:
    shape = replace(preset_shape("vit-b"), layers=1)
    model = ViT(shape, seed=0)
    per_layer = 12 * 768**2
    dense = 6 * 196 * (per_layer + 768 * 768) + 12 * 768 * 196**2 + 6 * 768 * 1000
    assert model.flops_per_sample() == dense
    whole = 6 * 196 * (12 * per_layer + 768 * 768) + 12 * 12 * 768 * 196**2 + 6 * 768 * 1000
    assert whole == pytest.approx(105.6e9, rel=0.02)


@pytest.mark.parametrize(
    ("field", "value", "said"), [("patch_size", 3, "patches of 3"), ("heads", 5, "shared by 5 heads")]
)
def test_sizes_that_do_not_fit_are_told(field: str, value: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(TINY_SHAPE, **{field: value})


@pytest.mark.parametrize(
    ("name", "millions"), [("vit-s", 22.05), ("vit-b", 86.57), ("vit-l", 304.3), ("vit-g", 1012.6)]
)
def test_presets_have_the_published_numbers_of_parameters(name: str, millions: float) -> None:
    shape = preset_shape(name)
    one, two = (ViT(replace(shape, layers=layers), seed=0) for layers in (1, 2))
    small, large = (sum(parameter.numel() for parameter in model.parameters()) for model in (one, two))
    found = small + (large - small) * (shape.layers - 1)
    assert found == pytest.approx(millions * 1e6, rel=1e-3)  # those of timm, which have a class token


def test_checkpointing_gives_the_same_gradient_from_less_memory() -> None:
    gradients, kept = [], []
    for checkpointing in (False, True):
        model = excited(ViT(replace(TINY_SHAPE, layers=6), seed=0))
        model.checkpointing = checkpointing
        with Operations() as done:
            logits = model(random_images(512))
        kept.append(done.kept_bytes())
        torch.autograd.backward(logits.square().sum() / 512)
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert 0 < kept[1] < 0.6 * kept[0]


def test_no_convolution_runs_so_that_settings_of_cudnn_for_them_have_no_effect() -> None:
    with Operations() as done:
        torch.autograd.backward(excited(ViT(TINY_SHAPE, seed=0))(random_images(2)).square().sum())
    assert "addmm" in done.names
    assert not {name for name in done.names if "conv" in name or "cudnn" in name}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_it_is_one_graph_forward_and_backward_that_computes_the_same(checkpointing: bool) -> None:
    torch.compiler.reset()
    model = excited(ViT(replace(TINY_SHAPE, layers=1), seed=0))
    model.checkpointing = checkpointing
    images = random_images(2)

    def gradient(forward: object) -> torch.Tensor:
        model.zero_grad()
        assert callable(forward)
        torch.autograd.backward(forward(images).square().sum())
        assert model.patches_in.weight.grad is not None
        return model.patches_in.weight.grad.clone()

    plain, fast = gradient(model), gradient(torch.compile(model, backend="aot_eager", fullgraph=True))
    assert plain.norm() > 0
    assert torch.allclose(fast, plain, rtol=1e-4, atol=1e-5 * float(plain.abs().max()))


def test_the_loss_of_the_first_step_is_that_of_guessing() -> None:
    logits = ViT(TINY_SHAPE, seed=0)(random_images(8))
    loss = torch.nn.functional.cross_entropy(logits, torch.arange(8) % 5)
    assert float(loss.detach()) == pytest.approx(math.log(5))
