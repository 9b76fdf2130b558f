// The passes of Adafactor and CAME (kernels/factored.h). A block takes a tile of 64 x 256 elements:
// warp w its rows w, w + 8, ..., of which lane l takes columns l, l + 32, ... A row's sum is its
// lanes', by shuffles; a column's is its eight warps', in shared memory. Single elements, of which
// a warp reads 128 bytes, need no alignment: rows are of any width, and slices begin anywhere; a
// row's eight of each array are in flight at once. A block takes a parameter where numbers of a
// whole parameter are added, a thread a mean. Compiled without fused multiply-adds
// (CMakeLists.txt), so that results have the bits of the CPU's.
#include "kinora/kernels/cuda/factored.h"

#include "kinora/core/rounding.h"

namespace kinora::kernels::cuda {
namespace {

static_assert(kTileWarps * kTileLanes == kFactoredThreads && kTileColumns == kFactoredThreads);

constexpr int kRowSteps = kTileColumns / kTileLanes;

/// The warp's sum in all lanes, pairwise in a fixed order.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = kTileLanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, distance);
  }
  return value;
}

/// The block's sum in all threads, pairwise in a fixed order.
__device__ double block_sum(double value) {
  __shared__ double partial[kFactoredThreads];
  partial[threadIdx.x] = value;
  for (int half = kFactoredThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      partial[threadIdx.x] += partial[threadIdx.x + half];
    }
  }
  __syncthreads();
  return partial[0];
}

/// A block for each tile.
template <FactoredPass kPass>
__global__ void __launch_bounds__(kFactoredThreads)
    tile_kernel(FactoredTable table, FactoredRule rule, const StepControl* __restrict__ control) {
  if (control->skip != 0) {
    return;
  }
  const FactoredTile tile = factored_tile(kPass, table, blockIdx.x);
  const FactoredScalars scalars = factored_scalars(rule, *control, tile.mean_square);
  const int lane = threadIdx.x % kTileLanes;
  const int warp = threadIdx.x / kTileLanes;
  float column_roots[kRowSteps];
#pragma unroll
  for (int i = 0; i < kRowSteps; ++i) {
    const int column = lane + i * kTileLanes;
    const bool has_root =
        reads_roots(kPass) && tile.column_roots != nullptr && column < tile.columns;
    column_roots[i] = has_root ? tile.column_roots[column] : 1.0F;
  }
  float column_sums[kRowSteps] = {};
  float sum = 0.0F;
  for (int row = warp; row < tile.rows; row += kTileWarps) {
    const bool has_root = reads_roots(kPass) && tile.row_roots != nullptr;
    const float row_root = has_root ? tile.row_roots[row] : 1.0F;
    const int64_t first = row * tile.stride + lane;
    float grad[kRowSteps] = {};
    float mean[kRowSteps] = {};
#pragma unroll
    for (int i = 0; i < kRowSteps; ++i) {
      if (lane + i * kTileLanes < tile.columns) {
        if constexpr (reads_grad(kPass)) {
          grad[i] = tile.grad[first + i * kTileLanes];
        }
        if constexpr (reads_mean(kPass)) {
          mean[i] = tile.mean[first + i * kTileLanes];
        }
      }
    }
    float row_sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kRowSteps; ++i) {
      // Of what is behind the row the term is 0.
      const float term =
          factored_element<kPass>(scalars, row_root, column_roots[i], &grad[i], &mean[i]);
      if constexpr (sums_rows(kPass)) {
        row_sum += term;
        column_sums[i] += term;
      } else if constexpr (kPass == FactoredPass::kSumDirections) {
        sum += term;
      }
      if (lane + i * kTileLanes < tile.columns) {
        if constexpr (writes_grad(kPass)) {
          tile.grad[first + i * kTileLanes] = grad[i];
        }
        if constexpr (writes_mean(kPass)) {
          tile.mean[first + i * kTileLanes] = mean[i];
        }
      }
    }
    if constexpr (sums_rows(kPass)) {
      row_sum = warp_sum(row_sum);
      if (lane == 0) {
        tile.row_sums[row * tile.row_stride] = row_sum;
      }
    }
  }
  if constexpr (sums_rows(kPass)) {
    __shared__ float of_warps[kTileWarps][kTileColumns];
#pragma unroll
    for (int i = 0; i < kRowSteps; ++i) {
      of_warps[warp][lane + i * kTileLanes] = column_sums[i];
    }
    __syncthreads();
    const int column = threadIdx.x;
    if (column < tile.columns) {
      float column_sum = of_warps[0][column];
#pragma unroll
      for (int i = 1; i < kTileWarps; ++i) {
        column_sum += of_warps[i][column];
      }
      tile.column_sums[column] = column_sum;
    }
  } else if constexpr (kPass == FactoredPass::kSumDirections) {
    __shared__ float of_warps[kTileWarps];
    sum = warp_sum(sum);
    if (lane == 0) {
      of_warps[warp] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      float tile_sum = 0.0F;
      for (const float of_warp : of_warps) {
        tile_sum += of_warp;
      }
      table.tile_sums[blockIdx.x] = tile_sum;
    }
  }
}

/// A thread for each mean.
__global__ void __launch_bounds__(kFactoredThreads)
    mean_kernel(FactoredTable table, const StepControl* __restrict__ control) {
  const int64_t number = static_cast<int64_t>(blockIdx.x) * kFactoredThreads + threadIdx.x;
  if (control->skip == 0 && number < table.counts.means) {
    table.means[number] = factored_mean(table, number);
  }
}

/// A block for each parameter.
template <FactoredPass kPass>
__global__ void __launch_bounds__(kFactoredThreads)
    follow_kernel(FactoredTable table, FactoredRule rule, const StepControl* __restrict__ control) {
  constexpr bool kIsSquares = kPass == FactoredPass::kFollowSquares;
  const FactoredParameter& parameter = table.parameters[blockIdx.x];
  float* kept = kIsSquares ? parameter.factors : parameter.instability;
  if (control->skip != 0 || kept == nullptr) {
    return;
  }
  __shared__ FactoredShares shares;
  if (threadIdx.x == 0) {
    shares = shares_of(kPass, rule, *control);
  }
  __syncthreads();
  constexpr float kEps = kIsSquares ? kSquaresEps : kInstabilityEps;
  float* means = table.means + parameter.first_mean;
  const int64_t rows = parameter.num_row_means();
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < rows; i += kFactoredThreads) {
    sum += follow_mean(kept, means, i, shares, kEps);
  }
  const auto mean = static_cast<float>(block_sum(sum) / static_cast<double>(parameter.rows));
  for (int64_t i = threadIdx.x; i < rows; i += kFactoredThreads) {
    means[i] = reciprocal_root(kept[i] / mean);
  }
  for (int64_t i = rows + threadIdx.x; i < parameter.num_means(); i += kFactoredThreads) {
    means[i] = reciprocal_root(follow_mean(kept, means, i, shares, kEps));
  }
}

/// A block for each parameter.
__global__ void __launch_bounds__(kFactoredThreads)
    mean_square_kernel(FactoredTable table, const StepControl* __restrict__ control) {
  if (control->skip != 0) {
    return;
  }
  const FactoredParameter& parameter = table.parameters[blockIdx.x];
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < parameter.num_tiles; i += kFactoredThreads) {
    sum += table.tile_sums[parameter.first_tile + i];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    table.mean_squares[blockIdx.x] =
        static_cast<float>(sum / static_cast<double>(parameter.rows * parameter.columns));
  }
}

}  // namespace

cudaError_t run_pass(FactoredPass pass, const FactoredTable& table, const FactoredRule& rule,
                     const StepControl* control, cudaStream_t stream) {
  const int64_t items = num_items(pass, table);
  if (items == 0) {
    return cudaSuccess;
  }
  const auto launch = [&](auto* kernel) {
    kernel<<<static_cast<unsigned>(items), kFactoredThreads, 0, stream>>>(table, rule, control);
  };
  switch (pass) {
    case FactoredPass::kSumSquares:
      launch(tile_kernel<FactoredPass::kSumSquares>);
      break;
    case FactoredPass::kSumDirections:
      launch(tile_kernel<FactoredPass::kSumDirections>);
      break;
    case FactoredPass::kClip:
      launch(tile_kernel<FactoredPass::kClip>);
      break;
    case FactoredPass::kFollowDirections:
      launch(tile_kernel<FactoredPass::kFollowDirections>);
      break;
    case FactoredPass::kTrust:
      launch(tile_kernel<FactoredPass::kTrust>);
      break;
    case FactoredPass::kMeanSquares:
    case FactoredPass::kMeanInstability: {
      const int64_t blocks = ceil_div(items, kFactoredThreads);
      mean_kernel<<<static_cast<unsigned>(blocks), kFactoredThreads, 0, stream>>>(table, control);
      break;
    }
    case FactoredPass::kFollowSquares:
      launch(follow_kernel<FactoredPass::kFollowSquares>);
      break;
    case FactoredPass::kFollowInstability:
      launch(follow_kernel<FactoredPass::kFollowInstability>);
      break;
    case FactoredPass::kMeanDirections:
      mean_square_kernel<<<static_cast<unsigned>(items), kFactoredThreads, 0, stream>>>(table,
                                                                                        control);
      break;
  }
  return cudaGetLastError();
}

}  // namespace kinora::kernels::cuda
