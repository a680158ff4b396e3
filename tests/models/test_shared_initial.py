"""Designs that are built from one seed start with the same weights where they have the same weights."""

from __future__ import annotations

from contextlib import nullcontext
from typing import ClassVar

import pytest
import torch

import skipway

CONV = (
    "plain20", "resnet20@preact", "resnet20@conv_shortcut", "resnet20@exclusive_gate(bias=-6)",
    "resnet20@shortcut_gate",
    "resnet20@bn_after_add", "resnet20@relu_before_add", "resnet20@relu_only_preact", "resnet20@multiply",
    "resnet20@dropout_shortcut", "resnet20@scaled", "resnet20@highway",
)  # fmt: skip


def built(name: str, seed: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    torch.manual_seed(seed)
    weights = {key: value.detach() for key, value in skipway.create_model(name).named_parameters()}
    return weights, torch.rand(4)


@pytest.mark.parametrize("name", CONV)
def test_convolutions_and_head_are_those_of_the_plain_addition(name: str) -> None:
    """Also what is drawn afterwards (dropout, say) is the same, whatever a design drew for its own."""
    reference, behind = built("resnet20", 3)
    weights, drawn = built(name, 3)
    shared = [key for key in reference if "conv" in key or key.startswith("head")]
    assert len(shared) >= 21
    for key in shared:
        assert torch.equal(weights[key], reference[key]), key
    assert torch.equal(drawn, behind)


@pytest.mark.parametrize(
    "pair", [("gpt_nano@pre_norm", "gpt_nano@post_norm"), ("vit_tiny@pre_norm", "vit_tiny@post_act"),
             ("mlp12@plain", "mlp12@post_act")]
)  # fmt: skip
def test_tokens_and_features(pair: tuple[str, str]) -> None:
    one, other = (built(name, 5)[0] for name in pair)
    matrices = [k for k in one if k in other and one[k].dim() > 1 and one[k].shape == other[k].shape]
    assert len(matrices) > 8
    for key in matrices:
        assert torch.equal(one[key], other[key]), key


def test_another_seed_is_another_net_and_no_two_layers_are_alike() -> None:
    one, other = built("resnet20", 0)[0], built("resnet20", 1)[0]
    convolutions = [key for key in one if one[key].dim() == 4]
    assert not any(torch.equal(one[key], other[key]) for key in convolutions)
    same_shape = [one[key] for key in convolutions if one[key].shape == (16, 16, 3, 3)]
    assert len(same_shape) == 6
    assert len({float(weight.flatten()[0]) for weight in same_shape}) == 6


def test_one_number_is_drawn_whatever_the_model() -> None:
    behind = {name: built(name, 7)[1].tolist() for name in ("resnet8", "resnet20", "gpt_nano", "mlp4")}
    assert len({tuple(values) for values in behind.values()}) == 1
    torch.manual_seed(7)
    torch.randint(2**62, ())
    assert torch.rand(4).tolist() == behind["resnet8"]


def test_generators_of_accelerators_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def seeds_all(_: int) -> None:
        raise AssertionError("every generator of the machine was seeded")

    # As on a machine that has one; what is drawn from is the processor's all the same.
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    torch.manual_seed(7)
    pending = torch.cuda._lazy_seed_tracker.get_calls()
    expected = skipway.create_model("resnet8@preact").state_dict()
    assert torch.cuda._lazy_seed_tracker.get_calls() == pending
    torch.manual_seed(7)
    monkeypatch.setattr(torch, "manual_seed", seeds_all)
    again = skipway.create_model("resnet8@preact").state_dict()
    assert all(torch.equal(again[key], value) for key, value in expected.items())


def test_the_default_devices_generator_is_seeded_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Accelerator:
        seeds: ClassVar[list[int]] = []
        states: ClassVar[list[str]] = []
        current: ClassVar[list[int]] = []

        @classmethod
        def device(cls, index: int) -> nullcontext[None]:
            cls.current.append(index)
            return nullcontext()

        @staticmethod
        def get_rng_state() -> str:
            return "as it was"

        set_rng_state = states.append
        manual_seed = seeds.append

    monkeypatch.setattr(torch, "get_default_device", lambda: torch.device("cuda", 3))
    monkeypatch.setattr(torch, "get_device_module", lambda _: Accelerator)
    for _ in range(2):
        built("resnet8", 5)
    half = len(Accelerator.seeds) // 2
    assert half > 7
    assert Accelerator.seeds[:half] == Accelerator.seeds[half:]
    assert len(set(Accelerator.seeds)) == half
    assert Accelerator.states == ["as it was"] * 2
    assert set(Accelerator.current) == {3}
