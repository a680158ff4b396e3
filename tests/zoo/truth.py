"""What is true of the public models: number of units, and what stands on their shortcuts and behind their merges.

Where the numbers come from: `units` was counted in each model's source (blocks with an add, by class or by depth),
independently of any detector. `shortcut` and `after` are histograms in the notation of `zoo.compare`: ``x`` is
identity, ``BN·Conv1x1*3`` means three shortcuts of a 1x1 convolution, then batch norm. They began as the output of an
exploratory detector and were corrected by reading the source wherever it had mislabelled; `why` gives the reason. None
means that nobody has counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["TRUTHS", "Truth"]


@dataclass(frozen=True)
class Truth:
    """The right answer for one model.

    Args:
        units: number of merges of kind ``unit``, at all levels, or None.
        shortcut: histogram of h over the units and long skips, or None where it is not judged.
        after: histogram of f, likewise.
        cells: number of merges of kind ``cell``.
        long_skips: number of merges of kind ``long_skip``.
        why: the reason, where the answer is not what a first look gives.
    """

    units: int | None
    shortcut: str | None
    after: str | None
    cells: int = 0
    long_skips: int = 0
    why: str = ""


TRUTHS: Final[dict[str, Truth]] = {
    "timm/resnet18": Truth(8, "x*5 BN·Conv1x1*3", "ReLU*8"),
    "timm/resnet50": Truth(16, "x*12 BN·Conv1x1*4", "ReLU*16"),
    "timm/resnet50d": Truth(16, "x*12 BN·Conv1x1·AvgPool*3 BN·Conv1x1*1", "ReLU*16"),
    "timm/resnetv2_50": Truth(16, "x*12 Conv1x1*4", "x*16"),
    "timm/resnext26ts": Truth(8, "BN·Conv1x1*4 x*4", "SiLU*8"),
    "timm/regnetx_002": Truth(13, "x*9 BN·Conv1x1*4", "ReLU*13"),
    "timm/regnetz_005": Truth(None, "x*17", "x*17"),
    "timm/densenet121": Truth(0, "", ""),
    "timm/dla34": Truth(12, "x*8 BN·Conv1x1·MaxPool*4", "ReLU*12"),
    "timm/dpn68": Truth(22, "Slice*18 Slice·Conv1x1·ReLU·BN*4", "x*22"),
    "timm/efficientnet_b0": Truth(9, "x*9", "x*9"),
    "timm/efficientnetv2_rw_t": Truth(34, "x*34", "x*34"),
    "timm/mobilenetv2_100": Truth(10, "x*10", "x*10"),
    "timm/mobilenetv3_large_100": Truth(10, "x*10", "x*10"),
    "timm/mobilenetv4_conv_small": Truth(10, "x*10", "x*10"),
    "timm/convnext_atto": Truth(12, "x*12", "x*12"),
    "timm/convnextv2_atto": Truth(12, "x*12", "x*12"),
    "timm/vit_tiny_patch16_224": Truth(24, "x*24", "x*24"),
    "timm/deit_tiny_patch16_224": Truth(24, "x*24", "x*24"),
    "timm/deit3_small_patch16_224": Truth(24, "x*24", "x*24"),
    "timm/swin_tiny_patch4_window7_224": Truth(24, "x*24", "x*24"),
    "timm/swinv2_tiny_window8_256": Truth(24, "x*24", "x*24"),
    "timm/cait_xxs24_224": Truth(52, "x*52", "x*52"),
    "timm/beit_base_patch16_224": Truth(24, "x*24", "x*24"),
    "timm/mixer_s32_224": Truth(16, "x*16", "x*16"),
    "timm/resmlp_12_224": Truth(24, "x*24", "x*24"),
    "timm/gmlp_ti16_224": Truth(30, "x*30", "x*30"),
    "timm/poolformer_s12": Truth(24, "x*24", "x*24"),
    "timm/poolformerv2_s12": Truth(
        24,
        "x*8 λ*16",
        "x*24",
        why="res_scale1 is on the token mixers of stages 2 and 3 too; the n of pool(n) - n is no shortcut",
    ),
    "timm/xcit_nano_12_p16_224": Truth(40, "x*40", "x*40"),
    "timm/coat_lite_tiny": Truth(24, "x*24", "x*24"),
    "timm/coat_tiny": Truth(None, "x*78", "x*78"),
    "timm/maxvit_nano_rw_256": Truth(35, "x*31 Conv1x1·AvgPool*3 AvgPool*1", "x*35"),
    "timm/coatnet_nano_rw_224": Truth(None, "x*21 Conv1x1·AvgPool*3 AvgPool*1", "x*25"),
    "timm/nfnet_l0": Truth(12, "x*8 Conv1x1·AvgPool*3 Conv1x1*1", "x*12"),
    "timm/dm_nfnet_f0": Truth(12, "x*8 Conv1x1·AvgPool*3 Conv1x1*1", "x*12"),
    "timm/vgg11": Truth(0, "", ""),
    "timm/ghostnet_100": Truth(16, "x*11 BN·Conv1x1·BN·Conv3x3*3 BN·Conv1x1·BN·Conv5x5*2", "x*16"),
    "timm/hrnet_w18_small": Truth(23, "x*18 BN·Conv1x1*5", "ReLU*23"),
    "timm/inception_resnet_v2": Truth(40, "x*40", "ReLU*39 x*1"),
    "timm/inception_v3": Truth(0, "", ""),
    "timm/edgenext_xx_small": Truth(15, "x*15", "x*15"),
    "timm/focalnet_tiny_srf": Truth(24, "x*24", "x*24"),
    "timm/davit_tiny": Truth(48, "x*48", "x*48"),
    "timm/eva02_tiny_patch14_224": Truth(24, "x*24", "x*24"),
    "timm/volo_d1_224": Truth(40, "x*38 Slice*2", "x*40"),
    "timm/visformer_tiny": Truth(23, "x*23", "x*23"),
    "timm/levit_128s": Truth(20, "x*20", "x*20"),
    "timm/tresnet_m": Truth(21, "x*18 BN·Conv1x1·AvgPool*3", "ReLU*21"),
    "timm/repvgg_a0": Truth(22, "BN*17 BN·Conv1x1*5", "ReLU*22"),
    "timm/mobileone_s1": Truth(
        None,
        "BN*34 BN·Conv1x1*5",
        "ReLU*39",
        why="`out += 0` of the blocks without identity branch stands between the sum and its ReLU",
    ),
    "timm/mvitv2_tiny": Truth(30, "x*27 MaxPool·Linear*3", "x*30"),
    "timm/hiera_tiny_224": Truth(
        24, "x*21 MaxPool·Linear*3", "x*24", why="amax over the tokens of a window is a max pool"
    ),
    "timm/pvt_v2_b0": Truth(16, "x*16", "x*16"),
    "timm/twins_svt_small": Truth(40, "x*40", "x*40"),
    "timm/tnt_s_patch16_224": Truth(
        48,
        "x*48",
        "x*48",
        why="proj(norm(pixels)) joins the patches from another stream: kind injection",
    ),
    "timm/pit_ti_224": Truth(24, "x*24", "x*24"),
    "timm/nest_tiny": Truth(24, "x*24", "x*24"),
    "timm/gcvit_xxtiny": Truth(None, "x*35", "x*35"),
    "timm/crossvit_9_240": Truth(None, "x*24 Slice*6", "x*30"),
    "timm/convit_tiny": Truth(24, "x*24", "x*24"),
    "timm/convmixer_1024_20_ks9_p14": Truth(20, "x*20", "x*20"),
    "timm/caformer_s18": Truth(36, "λ*24 x*12", "x*36"),
    "timm/mambaout_femto": Truth(18, "x*18", "x*18"),
    "timm/res2net50_14w_8s": Truth(16, "x*12 BN·Conv1x1*4", "ReLU*16"),
    "timm/resnest14d": Truth(4, "BN·Conv1x1·AvgPool*3 BN·Conv1x1*1", "ReLU*4"),
    "timm/senet154": Truth(50, "x*46 BN·Conv3x3*3 BN·Conv1x1*1", "ReLU*50"),
    "timm/skresnet18": Truth(8, "x*5 BN·Conv1x1*3", "ReLU*8"),
    "timm/selecsls42": Truth(0, "", ""),
    "timm/vovnet39a": Truth(0, "", ""),
    "timm/xception41": Truth(
        12,
        "x*8 BN·Conv1x1*4",
        "x*12",
        why="the entry and exit flow hold 12 XceptionModules with an add; the older list said 11",
    ),
    "timm/pnasnet5large": Truth(
        None, None, None, cells=42, why="cell sums pool(x) + sepconv(x) are kind cell, judged by kind only"
    ),
    "timm/rexnet_100": Truth(11, "x*11", "x*11"),
    "timm/sequencer2d_s": Truth(36, "x*36", "x*36"),
    "timm/swiftformer_xs": Truth(None, "x*28", "x*28"),
    "timm/tiny_vit_5m_224": Truth(None, "x*22", "x*20 GELU*2"),
    "timm/efficientformer_l1": Truth(
        None, "x*16 λ*14", "x*30", why="x + λ(pool(x) - x) is (1 - λ)x + λ pool(x): λ stands on the shortcut too"
    ),
    "timm/efficientformerv2_s0": Truth(
        None,
        "x*18 BN·Conv3x3*1 AvgPool*1",
        "x*20",
        why="v_local(v) + attn(v) joins two functions of the values: no stream passes there",
    ),
    "timm/efficientvit_b0": Truth(None, "x*11", "x*11"),
    "timm/efficientvit_m0": Truth(38, "x*38", "x*38"),
    "timm/fastvit_t8": Truth(
        None,
        "x*20 BN*14 BN·Conv1x1*3",
        "x*31 GELU*6",
        why="the LayerScale behind mixer(x) - norm(x) is in the branch of the block, not behind the mixer",
    ),
    "timm/mobilevit_xs": Truth(None, "x*20", "x*20"),
    "timm/mobilevitv2_050": Truth(None, "x*19", "x*19"),
    "timm/nextvit_small": Truth(None, "x*44", "x*44"),
    "timm/repvit_m0_9": Truth(
        None,
        "x*49",
        "x*26 BN*23",
        why="RepVggDw ends in bn(conv(x) + conv1(x) + x) in all 23 mixers, the ten before a gate too",
    ),
    "timm/repghostnet_050": Truth(48, "BN*32 x*11 BN·Conv1x1·BN·Conv3x3*3 BN·Conv1x1·BN·Conv5x5*2", "x*32 ReLU*16"),
    "timm/starnet_s1": Truth(15, "x*15", "x*15"),
    "timm/rdnet_tiny": Truth(0, "", ""),
    "timm/inception_next_atto": Truth(12, "x*12", "x*12"),
    "timm/hgnet_tiny": Truth(None, "x*1", "x*1"),
    "timm/cspresnet50": Truth(None, "x*13", "LeakyReLU*13"),
    "timm/vitamin_small_224": Truth(None, "x*32 AvgPool*1 Conv1x1·AvgPool*1", "x*34"),
    "timm/vit_relpos_small_patch16_224": Truth(24, "x*24", "x*24"),
    "timm/samvit_base_patch16_224": Truth(24, "x*24", "x*24"),
    "timm/fasternet_t0": Truth(13, "x*13", "x*13"),
    "timm/shvit_s1": Truth(None, "x*39", "x*39"),
    "timm/efficientvim_m1": Truth(
        None, "x*4 λ*24 | x*4 lerp*24", "x*28", why="x + a(F(x) - x) is (1 - a)x + a F(x), a learned"
    ),
    "timm/lcnet_050": Truth(0, "", ""),
    "timm/vit_base_patch32_plus_256": Truth(24, "x*24", "x*24"),
    "timm/bat_resnext26ts": Truth(
        16,
        "x*12 BN·Conv1x1*4",
        "x*8 SiLU*8",
        why="each BatNonLocalAttn returns y + x: eight units inside the eight blocks",
    ),
    "timm/lambda_resnet26t": Truth(8, "BN·Conv1x1*4 x*4", "ReLU*8"),
    "timm/vit_small_patch16_36x1_224": Truth(72, "x*72", "x*72"),
    "timm/vit_small_patch16_18x2_224": Truth(36, "x*36", "x*36"),
    "tv/alexnet": Truth(0, "", ""),
    "tv/convnext_tiny": Truth(18, "x*18", "x*18"),
    "tv/densenet121": Truth(0, "", ""),
    "tv/efficientnet_b0": Truth(9, "x*9", "x*9"),
    "tv/efficientnet_v2_s": Truth(35, "x*35", "x*35"),
    "tv/googlenet": Truth(0, "", ""),
    "tv/inception_v3": Truth(0, "", ""),
    "tv/maxvit_t": Truth(55, "x*51 Conv1x1·AvgPool*4", "x*55"),
    "tv/mnasnet0_5": Truth(10, "x*10", "x*10"),
    "tv/mobilenet_v2": Truth(10, "x*10", "x*10"),
    "tv/mobilenet_v3_small": Truth(6, "x*6", "x*6"),
    "tv/regnet_x_400mf": Truth(22, "x*18 BN·Conv1x1*4", "ReLU*22"),
    "tv/regnet_y_400mf": Truth(16, "x*12 BN·Conv1x1*4", "ReLU*16"),
    "tv/resnet18": Truth(8, "x*5 BN·Conv1x1*3", "ReLU*8"),
    "tv/resnet50": Truth(16, "x*12 BN·Conv1x1*4", "ReLU*16"),
    "tv/resnext50_32x4d": Truth(16, "x*12 BN·Conv1x1*4", "ReLU*16"),
    "tv/wide_resnet50_2": Truth(16, "x*12 BN·Conv1x1*4", "ReLU*16"),
    "tv/shufflenet_v2_x0_5": Truth(0, "", ""),
    "tv/squeezenet1_1": Truth(0, "", ""),
    "tv/swin_t": Truth(24, "x*24", "x*24"),
    "tv/swin_v2_t": Truth(24, "x*24", "x*24"),
    "tv/vgg11_bn": Truth(0, "", ""),
    "tv/vit_b_32": Truth(24, "x*24", "x*24"),
    "tv/fcn_resnet50": Truth(16, "x*12 BN·Conv1x1*4", "ReLU*16"),
    "tv/resnet18_fpn": Truth(
        8,
        "x*5 BN·Conv1x1*3 Conv1x1*3 | x*5 scale[tensor]·Conv1x1*3 Conv1x1*3",
        "ReLU*8 x*3",
        long_skips=3,
        why="FrozenBatchNorm2d is x·scale + bias of two buffers; the three lateral merges are long skips",
    ),
    "hf/bert": Truth(8, "x*8", "LN*8"),
    "hf/roberta": Truth(8, "x*8", "LN*8"),
    "hf/electra": Truth(8, "x*8", "LN*8"),
    "hf/albert(shared)": Truth(8, "x*8", "LN*8"),
    "hf/distilbert": Truth(8, "x*8", "LN*8"),
    "hf/mpnet": Truth(8, "x*8", "LN*8"),
    "hf/deberta": Truth(8, "x*8", "LN*8", why="DebertaLayerNorm subtracts the mean by hand: layer, not rms"),
    "hf/deberta-v2": Truth(8, "x*8", "LN*8"),
    "hf/xlnet": Truth(8, "x*8", "LN*8"),
    "hf/xlm": Truth(
        8, "x*8", "LN*8", why="tensor *= mask comes after the norm and is data preparation, not a scale of the unit"
    ),
    "hf/fnet": Truth(8, "x*8", "LN*8"),
    "hf/gpt2": Truth(8, "x*8", "x*8"),
    "hf/gpt_neo": Truth(8, "x*8", "x*8"),
    "hf/gpt_neox(par)": Truth(4, "x*4", "x*4"),
    "hf/gptj(par)": Truth(4, "x*4", "x*4"),
    "hf/codegen(par)": Truth(4, "x*4", "x*4"),
    "hf/llama": Truth(8, "x*8", "x*8"),
    "hf/mistral": Truth(8, "x*8", "x*8"),
    "hf/qwen2": Truth(8, "x*8", "x*8"),
    "hf/gemma2(sandwich)": Truth(8, "x*8", "x*8"),
    "hf/olmo2": Truth(8, "x*8", "x*8"),
    "hf/granite": Truth(8, "x*8", "x*8"),
    "hf/cohere(par)": Truth(4, "x*4", "x*4"),
    "hf/mixtral(moe)": Truth(8, "x*8", "x*8"),
    "hf/phi(par)": Truth(4, "x*4", "x*4"),
    "hf/falcon(par)": Truth(4, "x*4", "x*4"),
    "hf/bloom": Truth(8, "x*8", "x*8"),
    "hf/opt": Truth(8, "x*8", "x*8"),
    "hf/t5": Truth(20, "x*20", "x*20"),
    "hf/bart": Truth(20, "x*20", "LN*20"),
    "hf/wav2vec2": Truth(9, "x*9", "LN*9"),
    "hf/whisper": Truth(20, "x*20", "x*20"),
    "hf/vit": Truth(8, "x*8", "x*8"),
    "hf/swin": Truth(8, "x*8", "x*8"),
    "hf/convnext": Truth(4, "x*4", "x*4"),
    "hf/resnet": Truth(4, "x*3 BN·Conv1x1*1", "ReLU*4"),
    "hf/segformer": Truth(8, "x*8", "x*8"),
    "hf/mamba": Truth(8, "λ*4 x*4", "x*8"),
    "hf/mamba2": Truth(8, "λ·ZeroPad*4 x*4", "x*8"),
    "hf/rwkv": Truth(8, "x*8", "x*8"),
    "hf/clip": Truth(12, "x*12", "x*12"),
}
