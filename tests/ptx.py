"""Instructions of PTX that kernels have as inline assembly, run on the CPU by `cuda_emulator`.

The assembly of a kernel's own source becomes calls of the functions of `INSTRUCTIONS`, in which the
threads of a warp meet: each gives its registers and gets its own back. Which element of a matrix a
register holds is written as NVIDIA's documentation has it, so that a kernel with another layout
computes something else.

References
----------
.. [1] NVIDIA, PTX ISA 8.7, 9.7.14.5 (matrix fragments of ``mma`` with m16n8k8 and m16n8k16; warp
   level matrix load ``ldmatrix``), 9.7.9.22 (``cvt``).
"""

from __future__ import annotations

import re

INSTRUCTIONS = r"""
// Sums are most of the work, and no instruction reads memory but `ldmatrix`, which is of the block.
#define QUIET_ __attribute__((no_sanitize("thread")))
#define FAST_ __attribute__((optimize("O2"), noinline, no_sanitize("thread")))
struct fragments_ { float a[16][16], b[16][8]; const unsigned short* rows[32]; };
static fragments_ of_warps_[32][2];
static unsigned int turn_[1024];
// What a warp hands round in one instruction is in another place than in the one before, which
// some of its threads may still read.
static QUIET_ fragments_& handed_round_() {
    return of_warps_[threadIdx.x / 32][turn_[threadIdx.x]++ % 2];
}

static QUIET_ float of_bits_(unsigned int bits) {
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}
static QUIET_ float of_f16_(unsigned int bits) {
    const unsigned short low = (unsigned short)bits;
    _Float16 x;
    __builtin_memcpy(&x, &low, 2);
    return (float)x;
}
static QUIET_ float of_bf16_(unsigned int bits) { return of_bits_(bits << 16); }

// An accumulator: rows group and group + 8, columns 2 in_group and 2 in_group + 1.
static FAST_ void add_products_(float& c, const fragments_& f, int i, int depth) {
    const int group = threadIdx.x % 32 / 4, in_group = threadIdx.x % 4;
    const int row = i < 2 ? group : group + 8, column = in_group * 2 + (i & 1);
    float total = c;
    for (int k = 0; k < depth; ++k) total = total + f.a[row][k] * f.b[k][column];
    c = total;
}

static QUIET_ void multiply_16_(
    float (*value)(unsigned int), float* const (&d)[4], const unsigned int (&a)[4],
    const unsigned int (&b)[2], const float (&c)[4])
{
    const int group = threadIdx.x % 32 / 4, in_group = threadIdx.x % 4;
    fragments_& f = handed_round_();
    for (int i = 0; i < 8; ++i) {  // two elements in a register, the first one in the lower half
        const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
        const int column = in_group * 2 + (i & 1) + (i < 4 ? 0 : 8);
        f.a[row][column] = value(a[i / 2] >> 16 * (i & 1) & 0xFFFF);
    }
    for (int i = 0; i < 4; ++i)
        f.b[in_group * 2 + (i & 1) + (i < 2 ? 0 : 8)][group]
            = value(b[i / 2] >> 16 * (i & 1) & 0xFFFF);
    syncwarp_();
    for (int i = 0; i < 4; ++i) { float sum = c[i]; add_products_(sum, f, i, 16); *d[i] = sum; }
}

#define MMA_(name, multiply) \
    static QUIET_ void name( \
        float& d0, float& d1, float& d2, float& d3, unsigned int a0, unsigned int a1, \
        unsigned int a2, unsigned int a3, unsigned int b0, unsigned int b1, float c0, float c1, \
        float c2, float c3) \
    { \
        float* const d[4] = {&d0, &d1, &d2, &d3}; \
        const unsigned int a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1}; \
        const float c[4] = {c0, c1, c2, c3}; \
        multiply; \
    }
MMA_(mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, multiply_16_(of_f16_, d, a, b, c))
MMA_(mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, multiply_16_(of_bf16_, d, a, b, c))

static QUIET_ void multiply_tf32_(
    float* const (&d)[4], const unsigned int (&a)[4], const unsigned int (&b)[2],
    const float (&c)[4])
{
    const int group = threadIdx.x % 32 / 4, in_group = threadIdx.x % 4;
    const unsigned int kept = 0xFFFFE000;  // the units do not see the other bits
    fragments_& f = handed_round_();
    for (int i = 0; i < 4; ++i)
        f.a[i % 2 ? group + 8 : group][in_group + (i < 2 ? 0 : 4)] = of_bits_(a[i] & kept);
    for (int i = 0; i < 2; ++i) f.b[in_group + (i ? 4 : 0)][group] = of_bits_(b[i] & kept);
    syncwarp_();
    for (int i = 0; i < 4; ++i) { float sum = c[i]; add_products_(sum, f, i, 8); *d[i] = sum; }
}
MMA_(mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32, multiply_tf32_(d, a, b, c))

// Thread 8 i + r has the address of row r, of 8 elements, of matrix i; thread t gets elements
// 2 (t % 4) and the next one of row t / 4 of each matrix, or of its transpose.
static QUIET_ void load_matrices_(unsigned int* const (&out)[4], size_t address, bool transposed) {
    const int lane = threadIdx.x % 32;
    fragments_& f = handed_round_();
    if (address % 16) __builtin_trap();
    f.rows[lane] = (const unsigned short*)address;
    syncwarp_();
    for (int i = 0; i < 4; ++i) {
        unsigned int pair = 0;
        for (int e = 0; e < 2; ++e) {
            const int row = lane / 4, column = lane % 4 * 2 + e;
            const unsigned int element = transposed ? f.rows[8 * i + column][row]
                                                    : f.rows[8 * i + row][column];
            pair |= element << 16 * e;
        }
        *out[i] = pair;
    }
}
#define LDMATRIX_(name, transposed) \
    static QUIET_ void name( \
        unsigned int& r0, unsigned int& r1, unsigned int& r2, unsigned int& r3, size_t address) \
    { \
        unsigned int* const out[4] = {&r0, &r1, &r2, &r3}; \
        load_matrices_(out, address, transposed); \
    }
LDMATRIX_(ldmatrix_sync_aligned_m8n8_x4_shared_b16, false)
LDMATRIX_(ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16, true)
static size_t __cvta_generic_to_shared(const void* x) { return (size_t)x; }

// To the nearest with 10 bits of the fraction, a tie away from 0.
static void cvt_rna_tf32_f32(unsigned int& out, float x) {
    __builtin_memcpy(&out, &x, 4);
    if ((out & 0x7F800000) != 0x7F800000) out = (out + 0x1000) & 0xFFFFE000;
}
"""

_ASSEMBLY = re.compile(
    r"asm volatile\(\s*(?P<code>\"[^\"]*\"(?:\s*\"[^\"]*\")*)\s*:(?P<operands>.*?)\);", re.DOTALL
)
_OPERAND = re.compile(r"\"[=+]?[rfl]\"\s*\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")


def with_calls(source: str) -> str:
    """Return a source in which inline assembly is a call of a function of `INSTRUCTIONS`."""

    def call(found: re.Match[str]) -> str:
        name = found["code"].split()[0].removeprefix('"')
        operands = _OPERAND.findall(found["operands"])
        used = [operands[int(number)] for number in re.findall(r"%(\d+)", found["code"])]
        return f"{name.replace('.', '_')}({', '.join(used)});"

    return _ASSEMBLY.sub(call, source)
