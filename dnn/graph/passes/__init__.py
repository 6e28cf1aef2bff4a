"""Passes: functions from a graph to one that computes the same with less.

| module | passes |
|---|---|
| `simplification` | constant_folding, common_subexpressions, dead_code, buffer_reuse, |
| | softmax_cross_entropy |
| `mixed_precision` | mixed_precision |
| `fusion` | elementwise_fusion, matmul_bias_activation, products_last |
"""

from dnn.graph.passes.fusion import elementwise_fusion, matmul_bias_activation, products_last
from dnn.graph.passes.graph import (
    PASSES,
    Graph,
    Pass,
    checking_passes,
    default_passes,
    explain,
    graph_of,
    mixed_precision_passes,
    optimise,
    register_pass,
    rewrite,
)
from dnn.graph.passes.mixed_precision import mixed_precision
from dnn.graph.passes.simplification import (
    buffer_reuse,
    common_subexpressions,
    constant_folding,
    dead_code,
    softmax_cross_entropy,
)

__all__ = [
    "PASSES",
    "Graph",
    "Pass",
    "buffer_reuse",
    "checking_passes",
    "common_subexpressions",
    "constant_folding",
    "dead_code",
    "default_passes",
    "elementwise_fusion",
    "explain",
    "graph_of",
    "matmul_bias_activation",
    "mixed_precision",
    "mixed_precision_passes",
    "optimise",
    "products_last",
    "register_pass",
    "rewrite",
    "softmax_cross_entropy",
]
