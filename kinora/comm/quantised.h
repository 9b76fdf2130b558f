#pragma once

#include <ATen/core/Tensor.h>

#include "kinora/comm/group.h"

/// Collectives whose floats travel as 8-bit ones: about a quarter of fp32's bytes, half of bf16's.
///
/// Each block of 128 elements of a part travels as E4M3 numbers with an fp32 scale of its own that
/// brings its largest magnitude M to 448, the format's largest number (Micikevicius et al. 2022;
/// blocks of 128 as in DeepSeek-V3's report, 2024, section 3.3.2: a scale costs 3 % more bytes, and
/// a large value spoils the precision of 127 others only). E4M3 rather than E5M2 for gradients,
/// too: the scale gives the range, so the bits go to the mantissa.
///
/// Error of an element v on its way, from three mantissa bits and a smallest number of 2^-9:
///   |error| <= max(|v| / 16, M / 448 * 2^-10) <= M / 28,
/// but for fp32's rounding of the scale (a relative 2^-22). A block with a value that is not finite
/// arrives as NaN, all of it.
///
/// Tensors are contiguous, fp32, bf16 or fp16, on the CPU or on a GPU (kCuda there in a build
/// without nvcc); both may differ in type. Groups of one copy and quantise nothing. Results are
/// ordered as with Group's plain forms. Errors: kShape, kConfig, and those of Group. What the group
/// counts are the bytes that travel: of uint8 and fp32 tensors, one operation each.
namespace kinora::comm {

/// `output` [n] = this rank's part of the sum or mean of the inputs [W * n]. Parts are exchanged
/// (all_to_all) and added here in fp32, in the order of the ranks, and rounded once: the errors of
/// the W ranks' elements add up, there is no other. kMax is refused (kConfig).
void reduce_scatter_fp8(const Group& group, const at::Tensor& output, const at::Tensor& input,
                        Reduction reduction = Reduction::kSum);

/// `output` [W * n] = the inputs [n] by rank, as they travelled: this rank's own part as well, so
/// that all ranks hold the same values. `input` may be this rank's part of `output`.
void all_gather_fp8(const Group& group, const at::Tensor& output, const at::Tensor& input);

}  // namespace kinora::comm
