"""Passes: functions that rewrite a graph to compute the same in less time or memory.

| module | passes |
|---|---|
| `simplification` | constant_folding, common_subexpressions, dead_code, buffer_reuse, |
| | softmax_cross_entropy |
| `image_layout` | pooling_relu, batch_norm_folding, image_layout, convolution_relu |
| `batch_norm` | batch_norm_sums |
| `precision` | product_bias, float16 (also called mixed_precision), bfloat16, tf32, |
| | conversions_first |
| `recomputation` | recomputation, where it is asked for |
| `fusion` | elementwise_fusion, chain_sums, matmul_bias_activation, products_last, |
| | products_together |
"""

from dnn.graph.passes.batch_norm import batch_norm_sums
from dnn.graph.passes.fusion import (
    chain_sums,
    elementwise_fusion,
    matmul_bias_activation,
    products_last,
    products_together,
)
from dnn.graph.passes.graph import (
    PASSES,
    Graph,
    Pass,
    checking_passes,
    default_passes,
    explain,
    graph_of,
    optimise,
    precision_passes,
    register_pass,
    rewrite,
)
from dnn.graph.passes.image_layout import (
    batch_norm_folding,
    convolution_relu,
    image_layout,
    pooling_relu,
)
from dnn.graph.passes.precision import (
    bfloat16,
    conversions_first,
    float16,
    mixed_precision,
    product_bias,
    tf32,
)
from dnn.graph.passes.simplification import (
    buffer_reuse,
    common_subexpressions,
    constant_folding,
    dead_code,
    recomputation,
    softmax_cross_entropy,
)

__all__ = [
    "PASSES",
    "Graph",
    "Pass",
    "batch_norm_folding",
    "batch_norm_sums",
    "bfloat16",
    "buffer_reuse",
    "chain_sums",
    "checking_passes",
    "common_subexpressions",
    "constant_folding",
    "conversions_first",
    "convolution_relu",
    "dead_code",
    "default_passes",
    "elementwise_fusion",
    "explain",
    "float16",
    "graph_of",
    "image_layout",
    "matmul_bias_activation",
    "mixed_precision",
    "optimise",
    "pooling_relu",
    "precision_passes",
    "product_bias",
    "products_last",
    "products_together",
    "recomputation",
    "register_pass",
    "rewrite",
    "softmax_cross_entropy",
    "tf32",
]
