"""Image models of timm and torchvision with random weights, each with a batch as small as the model takes.

Shapes: N batch, C channels, H height, W width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import timm
import torch
import torchvision
from torch import Tensor, nn

__all__ = ["vision_models"]

Entry = tuple[str, Callable[[], nn.Module], Callable[[nn.Module], Any]]


def _words(text: str) -> list[str]:
    return text.split()


# Models that take any size run at 64 pixels (a few need 96 or 256); the rest at the size that they were made for.
_TIMM_64: Final = _words("""
resnet18 resnet50 resnet50d resnetv2_50 resnext26ts regnetx_002 regnetz_005 densenet121 dla34 dpn68 efficientnet_b0
efficientnetv2_rw_t mobilenetv2_100 mobilenetv3_large_100 mobilenetv4_conv_small convnext_atto convnextv2_atto
poolformer_s12 poolformerv2_s12 nfnet_l0 dm_nfnet_f0 vgg11 ghostnet_100 hrnet_w18_small edgenext_xx_small tresnet_m
repvgg_a0 mobileone_s1 caformer_s18 mambaout_femto res2net50_14w_8s resnest14d senet154 skresnet18 selecsls42 vovnet39a
xception41 rexnet_100 swiftformer_xs efficientvit_b0 fastvit_t8 mobilevit_xs mobilevitv2_050 nextvit_small repvit_m0_9
repghostnet_050 starnet_s1 rdnet_tiny inception_next_atto hgnet_tiny cspresnet50 fasternet_t0 shvit_s1 efficientvim_m1
lcnet_050
""")
_TIMM_OTHER: Final = {"inception_resnet_v2": 96, "inception_v3": 96, "pnasnet5large": 96, "bat_resnext26ts": 256}
_TIMM_OWN: Final = _words("""
vit_tiny_patch16_224 deit_tiny_patch16_224 deit3_small_patch16_224 swin_tiny_patch4_window7_224
swinv2_tiny_window8_256 cait_xxs24_224 beit_base_patch16_224 mixer_s32_224 resmlp_12_224 gmlp_ti16_224
xcit_nano_12_p16_224 coat_lite_tiny coat_tiny maxvit_nano_rw_256 coatnet_nano_rw_224 focalnet_tiny_srf davit_tiny
eva02_tiny_patch14_224 volo_d1_224 visformer_tiny levit_128s mvitv2_tiny hiera_tiny_224 pvt_v2_b0 twins_svt_small
tnt_s_patch16_224 pit_ti_224 nest_tiny gcvit_xxtiny crossvit_9_240 convit_tiny convmixer_1024_20_ks9_p14
sequencer2d_s tiny_vit_5m_224 efficientformer_l1 efficientformerv2_s0 efficientvit_m0 vitamin_small_224
vit_relpos_small_patch16_224 samvit_base_patch16_224 vit_base_patch32_plus_256 lambda_resnet26t
vit_small_patch16_36x1_224 vit_small_patch16_18x2_224
""")
_TORCHVISION: Final = {
    **dict.fromkeys(
        _words("""
alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s mnasnet0_5 mobilenet_v2 mobilenet_v3_small
regnet_x_400mf regnet_y_400mf resnet18 resnet50 resnext50_32x4d wide_resnet50_2 shufflenet_v2_x0_5 squeezenet1_1 swin_t
swin_v2_t vgg11_bn
"""),
        64,
    ),
    "googlenet": 96,
    "inception_v3": 96,
    "maxvit_t": 224,
    "vit_b_32": 224,
}
_AUXILIARY: Final = ("googlenet", "inception_v3")


def _images(model: nn.Module, *, size: int | None) -> Tensor:
    """Two random images (N, 3, H, W) of `size` pixels, or of the size that timm keeps with the model."""
    pixels: int = size or model.default_cfg["input_size"][-1]  # type: ignore[index,union-attr,assignment]
    return torch.randn(2, 3, pixels, pixels)


def _timm(name: str) -> nn.Module:
    return timm.create_model(name, pretrained=False).eval()


def _torchvision(name: str) -> nn.Module:
    # Auxiliary heads add outputs, and their scipy-style initialisation costs minutes; neither matters here.
    extra = {"aux_logits": False, "init_weights": False} if name in _AUXILIARY else {}
    return getattr(torchvision.models, name)(weights=None, **extra).eval()


def _fcn() -> nn.Module:
    return torchvision.models.segmentation.fcn_resnet50(weights=None, weights_backbone=None).eval()


def _fpn() -> nn.Module:
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    return resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5).eval()


def vision_models() -> Iterator[Entry]:
    """Yield name, builder and batch builder of every image model."""
    sizes: dict[str, int | None] = {**dict.fromkeys(_TIMM_64, 64), **_TIMM_OTHER, **dict.fromkeys(_TIMM_OWN, None)}
    for name, size in sizes.items():
        yield f"timm/{name}", partial(_timm, name), partial(_images, size=size)
    for name, size in _TORCHVISION.items():
        yield f"tv/{name}", partial(_torchvision, name), partial(_images, size=size)
    yield "tv/fcn_resnet50", _fcn, partial(_images, size=64)
    yield "tv/resnet18_fpn", _fpn, partial(_images, size=64)
