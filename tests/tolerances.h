#pragma once

/// How far results may lie from what they are compared with: one table for all rooms. Each is
/// relative to the largest value of the tensor, or to its norm, and says what rounds on the way.
/// A test whose bound follows from something of its own (the 8-bit formats, a fitted constant,
/// digits of a file) keeps it beside the reason.
namespace kinora::tolerance {

/// Computed in double on both sides, stored in fp32.
inline constexpr double kStored = 1e-6;
/// The same fp32 operations, of which some round elsewhere: an optimizer's 20 steps, gradients.
inline constexpr double kFewRoundings = 2e-6;
/// Sums of up to some thousand fp32 numbers in another order: a block, a loss, ten sampler steps.
inline constexpr double kOtherOrder = 1e-5;
/// The same through blocks of three or four branches each.
inline constexpr double kOtherOrderOfBranches = 2e-5;
/// Sums in another order and the GPU kernels' fast functions.
inline constexpr double kGpuKernels = 5e-5;
/// A whole model or sampler in fp32 against another implementation: the project's promise. The
/// references' own fp32 noise is 1.5e-5 to 2e-5 of a tensor's norm.
inline constexpr double kWholeModel = 1e-4;
/// A model of two blocks in bf16 against fp32. One rounding is up to 2^-9 = 2e-3 of a value, and
/// some twenty lie between input and output.
inline constexpr double kWholeModelInBf16 = 3e-2;

}  // namespace kinora::tolerance
