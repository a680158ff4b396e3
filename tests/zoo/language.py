"""Models of transformers, built from tiny configurations with random weights.

Shapes: N batch, T tokens, D width, C channels, H height, W width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
import transformers
from torch import Tensor, nn

__all__ = ["language_models"]

Entry = tuple[str, Callable[[], nn.Module], Callable[[nn.Module], Any]]
Options = dict[str, Any]

_SMALL: Final[Options] = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64,
}  # fmt: skip
_GROUPED: Final[Options] = {**_SMALL, "num_key_value_heads": 2}
_MARKS: Final[Options] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GPT: Final[Options] = {"vocab_size": 99, "n_embd": 32, "n_layer": 4, "n_head": 4}
_PAIR: Final[Options] = {
    "vocab_size": 99, "d_model": 32, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
}  # fmt: skip
_C2P: Final[Options] = {**_SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
_CLIP_TOWER: Final[Options] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
}  # fmt: skip

# name: (class name without "Model" or in full, kind of batch, options)
_MODELS: Final[dict[str, tuple[str, str, Options]]] = {
    "bert": ("BertModel", "text", _SMALL),
    "roberta": ("RobertaModel", "text", _SMALL),
    "electra": ("ElectraModel", "text", {**_SMALL, "embedding_size": 16}),
    "albert(shared)": ("AlbertModel", "text", {**_SMALL, "embedding_size": 16}),
    "distilbert": (
        "DistilBertModel", "text", {"vocab_size": 99, "dim": 32, "n_layers": 4, "n_heads": 4, "hidden_dim": 64},
    ),
    "mpnet": ("MPNetModel", "text", _SMALL),
    "deberta": ("DebertaModel", "text", _C2P),
    "deberta-v2": ("DebertaV2Model", "text", {**_C2P, "position_buckets": 8}),
    "xlnet": ("XLNetModel", "text", {"vocab_size": 99, "d_model": 32, "n_layer": 4, "n_head": 4, "d_inner": 64}),
    "xlm": ("XLMModel", "text", {"vocab_size": 99, "emb_dim": 32, "n_layers": 4, "n_heads": 4}),
    "fnet": ("FNetModel", "ids", _SMALL),
    "gpt2": ("GPT2Model", "text", _GPT),
    "gpt_neo": (
        "GPTNeoModel",
        "text",
        {
            "vocab_size": 99, "hidden_size": 32, "num_layers": 4, "num_heads": 4,
            "attention_types": [[["global", "local"], 2]],
        },
    ),
    "gpt_neox(par)": ("GPTNeoXModel", "text", _SMALL),
    "gptj(par)": ("GPTJModel", "text", {**_GPT, "rotary_dim": 4}),
    "codegen(par)": ("CodeGenModel", "text", {**_GPT, "rotary_dim": 4}),
    "llama": ("LlamaForCausalLM", "text", _GROUPED),
    "mistral": ("MistralModel", "text", _GROUPED),
    "qwen2": ("Qwen2Model", "text", _GROUPED),
    "gemma2(sandwich)": ("Gemma2Model", "text", {**_GROUPED, "head_dim": 8}),
    "olmo2": ("Olmo2Model", "text", {**_GROUPED, "pad_token_id": 0, "eos_token_id": 2}),
    "granite": ("GraniteModel", "text", {**_GROUPED, "residual_multiplier": 0.22}),
    "cohere(par)": ("CohereModel", "text", {**_GROUPED, **_MARKS}),
    "mixtral(moe)": ("MixtralModel", "text", {**_GROUPED, "num_local_experts": 4}),
    "phi(par)": ("PhiModel", "text", _SMALL),
    "falcon(par)": ("FalconModel", "text", _SMALL),
    "bloom": ("BloomModel", "text", {"vocab_size": 99, "hidden_size": 32, "n_layer": 4, "n_head": 4}),
    "opt": (
        "OPTModel",
        "text",
        {
            "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "ffn_dim": 64,
            "word_embed_proj_dim": 32,
        },
    ),
    "t5": (
        "T5Model", "pair", {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 4, "num_heads": 4},
    ),
    "bart": ("BartModel", "pair", _PAIR),
    "wav2vec2": (
        "Wav2Vec2Model",
        "wave",
        {
            "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64,
            "conv_dim": [16] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
        },
    ),
    "whisper": (
        "WhisperModel",
        "spectrum",
        {**_PAIR, **_MARKS, "max_source_positions": 64, "decoder_start_token_id": 1},
    ),
    "vit": (
        "ViTModel",
        "image",
        {
            "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64,
            "image_size": 32, "patch_size": 8,
        },
    ),
    "swin": (
        "SwinModel",
        "image",
        {
            "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "image_size": 32, "patch_size": 2,
            "window_size": 4,
        },
    ),
    "convnext": (
        "ConvNextModel", "image", {"hidden_sizes": [8, 16], "depths": [2, 2], "num_stages": 2, "image_size": 32},
    ),
    "resnet": (
        "ResNetModel",
        "image",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2], "layer_type": "basic", "image_size": 64},
    ),
    "segformer": (
        "SegformerModel",
        "image",
        {
            "image_size": 64, "num_encoder_blocks": 2, "depths": [2, 2], "sr_ratios": [2, 1],
            "hidden_sizes": [16, 32], "num_attention_heads": [1, 2], "patch_sizes": [7, 3], "strides": [4, 2],
            "mlp_ratios": [2, 2],
        },
    ),
    "mamba": ("MambaModel", "ids", {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 4, "state_size": 4}),
    "mamba2": (
        "Mamba2Model",
        "ids",
        {
            "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 4, "state_size": 4, "num_heads": 8,
            "head_dim": 8, "n_groups": 2, "chunk_size": 8,
        },
    ),
    "rwkv": (
        "RwkvModel",
        "ids",
        {
            "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 4, "attention_hidden_size": 32,
            "intermediate_size": 64, "context_length": 32,
        },
    ),
    "clip": (
        "CLIPModel",
        "text and image",
        {
            "text_config": {**_CLIP_TOWER, "vocab_size": 99, "eos_token_id": 2},
            "vision_config": {**_CLIP_TOWER, "image_size": 32, "patch_size": 8},
        },
    ),
}  # fmt: skip


def _build(class_name: str, options: Options) -> nn.Module:
    """The model on scaled-dot-product attention where it has that, on plain attention otherwise."""
    model_class = getattr(transformers, class_name)
    config = model_class.config_class(**options)
    config._attn_implementation = "sdpa"
    try:
        return model_class(config).eval()
    except ValueError:  # transformers' own word for "this architecture has no such attention"
        config._attn_implementation = "eager"
        return model_class(config).eval()


def _batch(model: nn.Module, *, kind: str) -> dict[str, Tensor]:
    """Two samples of `kind` as keyword arguments; the second has three padded tokens where there is a mask."""
    ids = torch.randint(3, 95, (2, 16))  # (N, T)
    mask = torch.ones_like(ids)
    mask[1, -3:] = 0
    text = {"input_ids": ids, "attention_mask": mask}
    match kind:
        case "text":
            return text
        case "ids":
            return {"input_ids": ids}
        case "pair":
            return {**text, "decoder_input_ids": ids[:, :9]}
        case "wave":
            return {"input_values": torch.randn(2, 2000)}
        case "spectrum":
            return {"input_features": torch.randn(2, 80, 128), "decoder_input_ids": ids[:, :9]}
        case "text and image":
            return {**text, "pixel_values": torch.randn(2, 3, 32, 32)}
    size: int = model.config.image_size  # type: ignore[union-attr,assignment]
    return {"pixel_values": torch.randn(2, 3, size, size)}


def language_models() -> Iterator[Entry]:
    """Yield name, builder and batch builder of every model of transformers."""
    for name, (class_name, kind, options) in _MODELS.items():
        yield f"hf/{name}", partial(_build, class_name, options), partial(_batch, kind=kind)
