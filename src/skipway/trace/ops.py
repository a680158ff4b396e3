"""What the operations of PyTorch are, seen as parts of a residual unit.

Names are ATen's without the trailing underscore of in-place variants and the leading one of private ones
(``add_`` → ``add``, ``_softmax`` → ``softmax``). Composite names (``linear``, ``layer_norm``) occur in inference mode.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "ACTIVATION", "ADD", "ADDS_AT", "ADDS_MATMUL", "ADDS_PRODUCT", "ATTENTION", "BATCHED_MATMUL", "CONVOLUTION",
    "DROPOUT", "HEAVY", "LOOKUP", "MATMUL", "MULTIPLY", "NORM", "PAD", "POINTWISE", "POOL", "RANDOM", "SLICE",
    "SOURCELESS", "SUBSTANTIAL", "TURNS", "VIEW", "WEIGHTED", "WORKING", "activation_name", "norm_name",
]  # fmt: skip


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Same numbers in another shape, place or dtype.
VIEW: Final = _words(
    "view reshape unsafe_view reshape_alias permute transpose t mT numpy_T squeeze unsqueeze clone alias detach "
    "to_copy to type contiguous flatten unflatten movedim swapaxes swapdims expand expand_as lift_fresh "
    "lift_fresh_copy merge  float half bfloat16 double view_as pixel_unshuffle pixel_shuffle native_batch_permute "
    "as_strided getitem copy channel_shuffle view_as_real view_as_complex resize"
)
SLICE: Final = _words(
    "slice select split split_with_sizes chunk unbind narrow index tensor_split unsafe_split unsafe_chunk "
    "unsafe_split_with_sizes"
)
PAD: Final = _words("constant_pad_nd pad reflection_pad1d reflection_pad2d replication_pad2d")
NORM: Final = _words(
    "native_layer_norm layer_norm native_batch_norm batch_norm native_batch_norm_legit "
    "native_batch_norm_legit_no_training cudnn_batch_norm miopen_batch_norm batch_norm_with_update "
    "batch_norm_no_update native_group_norm group_norm rms_norm fused_rms_norm instance_norm "
    "native_batch_norm_legit_functional batch_norm_impl_index mkldnn_batch_norm"
)
ACTIVATION: Final = _words(
    "relu relu6 gelu silu hardswish hardtanh leaky_relu elu celu selu sigmoid tanh hardsigmoid mish prelu "
    "prelu_kernel softplus threshold clamp_min clamp clamp_max rrelu rrelu_with_noise log_sigmoid "
    "glu sin cos"
)
DROPOUT: Final = _words("native_dropout dropout feature_dropout alpha_dropout feature_alpha_dropout fused_dropout")
CONVOLUTION: Final = _words(
    "convolution conv1d conv2d conv3d mkldnn_convolution convolution_overrideable cudnn_convolution conv_transpose2d "
    "conv_transpose1d slow_conv2d thnn_conv2d conv_depthwise2d convolution_mode"
)
MATMUL: Final = _words("addmm mm linear matmul mv addmv mkldnn_linear")
BATCHED_MATMUL: Final = _words("bmm baddbmm addbmm")
ATTENTION: Final = _words(
    "scaled_dot_product_attention scaled_dot_product_flash_attention scaled_dot_product_flash_attention_for_cpu "
    "scaled_dot_product_efficient_attention scaled_dot_product_cudnn_attention scaled_dot_product_attention_math "
    "scaled_dot_product_fused_attention_overrideable flex_attention"
)
POOL: Final = _words(
    "avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool2d_with_indices max_pool3d_with_indices "
    "max_pool1d_with_indices adaptive_avg_pool2d adaptive_avg_pool1d adaptive_max_pool2d mkldnn_max_pool2d "
    "upsample_nearest2d upsample_bilinear2d upsample_bicubic2d upsample_bilinear2d_aa upsample_bicubic2d_aa "
    "upsample_nearest1d upsample_linear1d"
)
RANDOM: Final = _words(
    "rand randn bernoulli rand_like uniform normal randn_like multinomial exponential cauchy randint randperm "
    "randint_like"
)
# The value does not depend on the tensor arguments.
SOURCELESS: Final = _words(
    "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty new_empty_strided zeros ones "
    "full arange empty empty_strided scalar_tensor linspace eye zero fill"
)
MULTIPLY: Final = _words("mul div multiply true_divide divide")
ADD: Final = _words("add sub rsub subtract")
# Sums at the places that an index names (stochastic depth on some of the samples, messages to nodes of a graph).
ADDS_AT: Final = _words("index_add scatter_add scatter_reduce")
# Dimensions in another order, the same numbers.
TURNS: Final = _words("permute transpose t mT numpy_T movedim swapaxes swapdims")
LOOKUP: Final = _words("embedding embedding_bag index index_select gather take")
HEAVY: Final = (
    CONVOLUTION
    | MATMUL
    | BATCHED_MATMUL
    | ATTENTION
    | POOL
    | _words(
        "mkldnn_rnn_layer lstm gru rnn_tanh cudnn_rnn lstm_cell gru_cell thnn_fused_lstm_cell thnn_fused_gru_cell "
        "fft_r2c fft_c2c fft_c2r fft_rfft fft_fft fft_fftn cumsum cumprod logcumsumexp einsum embedding embedding_bag "
        "softmax safe_softmax native_multi_head_attention transformer_encoder_layer_fwd grouped_mm"
    )
)
# A sum fused with the product that is its second operand.
ADDS_MATMUL: Final = _words("addmm baddbmm addbmm addmv")
ADDS_PRODUCT: Final = _words("addcmul addcdiv")
# Weights times a signal: with attention, what makes a branch worth its parameters.
WEIGHTED: Final = CONVOLUTION | MATMUL
WORKING: Final = WEIGHTED | ATTENTION
# Makes a branch a branch.
SUBSTANTIAL: Final = HEAVY | NORM
# May stand between a join and the end of what follows it.
POINTWISE: Final = (
    _words(
        "add sub rsub mul div neg pow rsqrt sqrt reciprocal exp log mean sum square var var_mean std abs maximum "
        "minimum erf linalg_vector_norm norm amax where"
    )
    | ACTIVATION
    | VIEW
    | NORM
    | DROPOUT
)


def norm_name(op: str) -> str:
    """The field's name of a normalisation operation, e.g. ``"batch"``."""
    for name in ("batch", "layer", "group", "rms", "instance"):
        if name in op:
            return name
    return op


def heavy_name(op: str) -> str:
    """The field's name of a heavy operation, e.g. ``"lstm"`` of what a processor runs for `nn.LSTM`."""
    return {"mkldnn_rnn_layer": "lstm"}.get(op, op)


def activation_name(op: str, attrs: dict[str, object]) -> str:
    """The field's name of an activation operation, e.g. ``"relu"``; a clamp at 0 is a ReLU."""
    if op == "hardtanh" and attrs.get("min_val") == 0:
        return "relu6" if attrs.get("max_val") == 6 else op
    if op == "elu":  # selu and celu are elu with constants
        return "selu" if attrs.get("scale", 1) not in (1, 1.0) else "elu"
    if op == "clamp_min" or (op == "threshold" and attrs.get("value") == 0):
        return "relu"
    return {"prelu_kernel": "prelu", "log_sigmoid": "logsigmoid", "rrelu_with_noise": "rrelu"}.get(op, op)
