#pragma once

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/attention_tensor_map.h"
#include "kinora/kernels/cuda/attention_tile.cuh"

/// Matrix products by a warpgroup (PTX ISA, "Asynchronous warpgroup level matrix instructions"),
/// for sm_90a. 128 threads own 64 rows of an accumulator: warp w of the group has rows 16 w +
/// (0..15), and a thread the elements of mma.m16n8k16's C for each 8 columns (attention_ops.cuh),
/// so an accumulator is float [columns / 8][4], and packed in pairs it is an A of a product over
/// its columns.
///
/// Rows in shared memory lie as the copy engine leaves them (attention_tensor_map.h): plane p has
/// elements 16 p to 16 p + 15 (32 bytes) of all rows, row after row, zeros behind head_dim; in the
/// second half of each 8 rows the two halves of a row change places (the swizzle of 32 bytes, which
/// works on addresses: planes begin at multiples of 256). The same bytes serve as an operand over
/// head_dim (rows x head_dim, "K-major") and over the rows (head_dim x rows, "MN-major").
namespace kinora::kernels::cuda::attention {

/// A block: one warpgroup feeds the copy engine, the others compute.
inline constexpr int kGroupThreads = 128;  // of a warpgroup
inline constexpr int kConsumers = 2;       // warpgroups that compute
inline constexpr int kThreads = (1 + kConsumers) * kGroupThreads;

/// Elements of a plane.
inline constexpr int kPlaneElements = 16;

inline constexpr int kTileRows = 64;  // of a product; queries, or keys, of a tile
inline constexpr int kBlockRows = static_cast<int>(BlockMask::kRows);
inline constexpr int kBlockTiles = kBlockRows / kTileRows;

[[nodiscard]] inline int64_t tiles_of(int64_t rows) {
  return ceil_div(rows, kTileRows);
}

/// The tiles of a BlockMask's list of blocks. Of the last block of all rows, which have all_tiles,
/// there may be one.
struct ListedTiles {
  __device__ __forceinline__ ListedTiles(const int32_t* offsets, const int32_t* all_blocks,
                                         int number, int all_tiles)
      : blocks(all_blocks + offsets[number]) {
    const int num_blocks = offsets[number + 1] - offsets[number];
    count = num_blocks * kBlockTiles;
    if (num_blocks > 0 && (blocks[num_blocks - 1] + 1) * kBlockTiles > all_tiles) {
      count -= 1;
    }
  }
  [[nodiscard]] __device__ __forceinline__ int first_row(int tile) const {
    return blocks[tile / kBlockTiles] * kBlockRows + tile % kBlockTiles * kTileRows;
  }
  const int32_t* blocks;
  int count;
};

template <int kHeadDim>
inline constexpr int kPlanes = ceil_div(kHeadDim, kPlaneElements);

/// An operand in shared memory. `leading` and `stride`: bytes between 8 x 8 (swizzled: 8 x 16)
/// matrices that are neighbours; which is which depends on the kind. `swizzle`: 0 none, 3 32 bytes.
__device__ __forceinline__ uint64_t operand(uint32_t address, uint32_t leading, uint32_t stride,
                                            uint32_t swizzle) {
  return static_cast<uint64_t>((address & 0x3ffffU) >> 4) |
         static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32 |
         static_cast<uint64_t>(swizzle) << 62;
}

/// 16 elements of head_dim, the plane at `address`, of its rows (K-major).
__device__ __forceinline__ uint64_t over_dim(uint32_t address) {
  return operand(address, 16, 256, 3);
}

/// 16 rows, transposed (MN-major), of as many planes as the product has columns.
/// @param address  of the first row in the first plane
/// @param plane    bytes from plane to plane
__device__ __forceinline__ uint64_t over_rows(uint32_t address, uint32_t plane) {
  return operand(address, plane, 256, 3);
}

/// The items 0, 1, ... that worker w of many goes through. Where there are plenty, two neighbours
/// at a time: heads that share a sector of memory are then read, and written, by one worker within
/// microseconds.
struct Rounds {
  Rounds() = default;
  Rounds(int items, int num_workers) : workers(num_workers), in_pairs(items >= 8 * num_workers) {}

  [[nodiscard]] __device__ __forceinline__ int first(int worker) const {
    return in_pairs ? 2 * worker : worker;
  }
  [[nodiscard]] __device__ __forceinline__ int next(int item) const {
    return in_pairs ? (item % 2 == 0 ? item + 1 : item - 1 + 2 * workers) : item + workers;
  }

  int workers = 1;
  bool in_pairs = false;
};

/// Orders the registers of a product that follows behind what was written to them before.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// Ends a group of products.
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most kPending of the youngest groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from touching a product's registers on the other side of this line: it does
/// not know that they change until wait_products.
template <int kTiles>
__device__ __forceinline__ void pin(float (&acc)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      asm volatile("" : "+f"(acc[n][i])::"memory");
    }
  }
}

/// What this thread wrote to shared memory is seen by the tensor cores after a barrier.
__device__ __forceinline__ void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// An mbarrier in shared memory, whose phases end after `arrivals` arrivals.
__device__ __forceinline__ void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Once for the warp, whose products have ended.
__device__ __forceinline__ void arrive_warp(uint32_t barrier, int lane) {
  __syncwarp();
  if (lane == 0) {
    arrive(barrier);
  }
}

/// Waits for the end of the barrier's phase `parity`.
__device__ __forceinline__ void wait_for(uint32_t barrier, int parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra WAIT; }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Whether this is the one lane that the warp chooses. The compiler knows the meaning of this
/// instruction, and so puts no loop over the lanes around each copy.
__device__ __forceinline__ bool is_elected() {
  uint32_t elected = 0;
  asm volatile(
      "{ .reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(elected));
  return elected != 0;
}

/// Arrives, and the phase cannot end before this many bytes have come.
__device__ __forceinline__ void expect_bytes(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// Starts fetching rows [row, row + rows of the map's box) of a head into planes; the barrier gets
/// kPlanes x rows x 32 bytes, those of zeros too. By one thread.
/// @param plane  bytes from plane to plane
template <int kHeadDim>
__device__ __forceinline__ void load_rows(uint32_t target, uint32_t plane, const CUtensorMap& map,
                                          int row, int head, int sample, uint32_t barrier) {
#pragma unroll
  for (int p = 0; p < kPlanes<kHeadDim>; ++p) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2, %3, %4, %5}], [%6];" ::"r"(target + p * plane),
        "l"(&map), "r"(p * kPlaneElements), "r"(row), "r"(head), "r"(sample), "r"(barrier)
        : "memory");
  }
}

/// Starts fetching `bytes` (a multiple of 16) that lie in a row.
__device__ __forceinline__ void load_bytes(uint32_t target, const void* source, int bytes,
                                           uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(target),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

/// Registers of a thread from here on; all warps of the warpgroup.
template <int kRegisters, bool kMore>
__device__ __forceinline__ void set_registers() {
  if constexpr (kMore) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
  }
}

/// acc [64 x 8 kTiles] += A B (or = A B, where `accumulate` is 0), 16 elements of the sum, with A
/// from registers or from shared memory. kTransposed 0: operands in shared memory are K-major
/// (over_dim); 1: MN-major (over_rows).
template <typename T, int kTiles>
struct Product;

// The registers of 8 columns in an instruction's text, and those of all columns.
#define KINORA_TEXT_4 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define KINORA_TEXT_5 KINORA_TEXT_4 ", %16, %17, %18, %19"
#define KINORA_TEXT_8 KINORA_TEXT_5 ", %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KINORA_TEXT_9 KINORA_TEXT_8 ", %32, %33, %34, %35"
#define KINORA_TEXT_16                                                                         \
  KINORA_TEXT_9                                                                                \
  ", %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53" \
  ", %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define KINORA_ACC(n) "+f"(acc[n][0]), "+f"(acc[n][1]), "+f"(acc[n][2]), "+f"(acc[n][3])
#define KINORA_ACC_4 KINORA_ACC(0), KINORA_ACC(1), KINORA_ACC(2), KINORA_ACC(3)
#define KINORA_ACC_5 KINORA_ACC_4, KINORA_ACC(4)
#define KINORA_ACC_8 KINORA_ACC_5, KINORA_ACC(5), KINORA_ACC(6), KINORA_ACC(7)
#define KINORA_ACC_9 KINORA_ACC_8, KINORA_ACC(8)
#define KINORA_ACC_16                                                                          \
  KINORA_ACC_9, KINORA_ACC(9), KINORA_ACC(10), KINORA_ACC(11), KINORA_ACC(12), KINORA_ACC(13), \
      KINORA_ACC(14), KINORA_ACC(15)

// i0 ...: the numbers of the operands behind the accumulator.
#define KINORA_PRODUCT_OF(Type, name, tiles, columns, i0, i1, i2, i3, i4, i5, i6)                  \
  template <>                                                                                      \
  struct Product<Type, tiles> {                                                                    \
    template <int kTransposed>                                                                     \
    static __device__ __forceinline__ void of_registers(float (&acc)[tiles][4],                    \
                                                        const uint32_t (&a)[4], uint64_t b,        \
                                                        int accumulate) {                          \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #i5                                          \
                   ", 0;\n"                                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." name "." name           \
                   " " KINORA_TEXT_##tiles "}, {%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4    \
                                           ", p, 1, 1, %" #i6 "; }"                                \
                   : KINORA_ACC_##tiles                                                            \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate),          \
                     "n"(kTransposed));                                                            \
    }                                                                                              \
    template <int kTransposed>                                                                     \
    static __device__ __forceinline__ void of_shared(float (&acc)[tiles][4], uint64_t a,           \
                                                     uint64_t b, int accumulate) {                 \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #i2                                          \
                   ", 0;\n"                                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." name "." name           \
                   " " KINORA_TEXT_##tiles "}, %" #i0 ", %" #i1 ", p, 1, 1, %" #i3 ", %" #i3 "; }" \
                   : KINORA_ACC_##tiles                                                            \
                   : "l"(a), "l"(b), "r"(accumulate), "n"(kTransposed));                           \
    }                                                                                              \
  };
#define KINORA_PRODUCT(tiles, columns, ...)                    \
  KINORA_PRODUCT_OF(Bf16, "bf16", tiles, columns, __VA_ARGS__) \
  KINORA_PRODUCT_OF(F16, "f16", tiles, columns, __VA_ARGS__)

KINORA_PRODUCT(4, 32, 16, 17, 18, 19, 20, 21, 22)
KINORA_PRODUCT(5, 40, 20, 21, 22, 23, 24, 25, 26)
KINORA_PRODUCT(8, 64, 32, 33, 34, 35, 36, 37, 38)
KINORA_PRODUCT(9, 72, 36, 37, 38, 39, 40, 41, 42)
KINORA_PRODUCT(16, 128, 64, 65, 66, 67, 68, 69, 70)

}  // namespace kinora::kernels::cuda::attention
