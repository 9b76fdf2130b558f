// Attention forward on Hopper: O = softmax(scale Q K^T) V and lse, with the products of a
// warpgroup.
//
// Layout: persistent blocks of three warpgroups, one a multiprocessor, that walk over items: up to
// 256 queries of a head and all its keys. Two threads of the first warpgroup only start copies of
// the copy engine, one for keys and values, in tiles of 64 through a ring of stages, and one for
// queries, through two buffers; neither waits for the other, and neither ring drains between items.
// The other warpgroups compute. Each has two tiles of 64 queries in turns: while the tensor cores
// do O += P V of the one and its S = Q K^T with the next keys, its threads do the softmax of the
// other. S, P and O stay in registers. At an item's end the rows of its Q in shared memory take the
// output, which so leaves in whole lines, while the next item's products run. Where items of 256
// queries are too few for the multiprocessors, an item is 128, a tile a warpgroup, and the two
// warpgroups alone overlap each other. The running maximum is raised as in attention_forward.cuh.
//
// Tiles are planes of 16 elements (attention_wgmma.cuh) with zeros behind head_dim and the last
// row, which the copy engine adds. It takes none of the registers and issue slots; 128 threads with
// cp.async get 9 bytes a cycle at 144-byte rows, half of what memory has (H100, data in L2).
//
// The compiler serialises products (ptxas C7510 ... C7515) if their registers are written while
// others are unfinished. So P is packed, and O rescaled, after the wait for the other tile's
// products; all the rest of the softmax comes before.
//
// Speed, 64 x 64 scores of head_dim 72: 304 cycles of the tensor cores, 256 of exp2, about 220
// instructions a warp. Of the 2 x 2 tiles in turns, the tensor cores' 1216 cycles are the longest.
// N 256: 16 such tiles a head, 4.9 k cycles; memory 147 KB = 8.2 k.
// Limits: capability 9.0 (compiled for 90a), head_dim 64 or 72, no ragged keys.
//
// Over a mask of blocks (BlockMask), then also with head_dim 128 and lengths of keys: an item is a
// block of 128 queries, whose tiles of keys are those of its list.
#include <algorithm>
#include <cfloat>
#include <limits>
#include <type_traits>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/attention_tensor_map.h"
#include "kinora/kernels/cuda/attention_tile.cuh"
#include "kinora/kernels/cuda/attention_wgmma.cuh"
#include "kinora/kernels/cuda/attention_wgmma.h"

namespace kinora::kernels::cuda::attention {
namespace {

constexpr int kScoreTiles = kTileRows / 8;
constexpr int kBuffers = 2;                                  // of queries
constexpr uint32_t kPlane = kTileRows * kPlaneElements * 2;  // bytes of a tile

/// What the copy engine fetches from, in boxes of kTileRows.
struct Maps {
  CUtensorMap q;
  CUtensorMap k;
  CUtensorMap v;
};

struct Plan {
  AttentionForward call;
  float scale_log2 = 0.0F;
  int num_tiles = 0;   // of all keys
  int head_items = 0;  // items of a head
  int num_items = 0;
  Rounds rounds;  // of blocks over the items
};

/// Shared memory. kSubs: tiles of queries of a warpgroup.
template <int kHeadDim, int kSubs>
struct Memory {
  static constexpr int kStages = kHeadDim <= 72 ? 7 : 5;
  static constexpr int kTiles = kSubs * kConsumers;  // of queries, of an item
  static constexpr int kQueries = kTiles * kTileRows;
  static constexpr int kTileBytes = kPlanes<kHeadDim> * kPlane;
  static constexpr int kQueryBytes = kTiles * kTileBytes;
  static constexpr int kStageBytes = 2 * kTileBytes;

  static constexpr int kQ = 0;                                     // [kBuffers][kTiles]
  static constexpr int kRing = kQ + kBuffers * kQueryBytes;        // [kStages][K, V]
  static constexpr int kKeysFull = kRing + kStages * kStageBytes;  // [kStages]: K has arrived
  static constexpr int kValuesFull = kKeysFull + kStages * 8;      // [kStages]: V has arrived
  static constexpr int kEmpty = kValuesFull + kStages * 8;         // [kStages]: both have been read
  static constexpr int kQueriesFull = kEmpty + kStages * 8;        // [kBuffers]
  static constexpr int kQueriesEmpty = kQueriesFull + kBuffers * 8;  // [kBuffers]
  static constexpr int kBytes = kQueriesEmpty + kBuffers * 8;
  static_assert(kBytes <= 227 * 1024);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Queries [first, first + kQueries) of a head.
struct Item {
  __device__ __forceinline__ Item(const Plan& plan, int number, int queries) {
    const int head = number / plan.head_items;
    b = head / static_cast<int>(plan.call.shape.heads);
    h = head - b * static_cast<int>(plan.call.shape.heads);
    first = (number - head * plan.head_items) * queries;
  }
  int b;
  int h;
  int first;
};

/// The tiles of keys of an item: all, or those that the mask has.
template <bool kBlocks>
struct Tiles {
  __device__ __forceinline__ Tiles(const Plan& plan, const Item& /*item*/)
      : count(plan.num_tiles) {}
  [[nodiscard]] static __device__ __forceinline__ int first_row(int tile) {
    return tile * kTileRows;
  }
  int count;
};

template <>
struct Tiles<true> : ListedTiles {
  __device__ __forceinline__ Tiles(const Plan& plan, const Item& item)
      : ListedTiles(plan.call.shape.mask.key_offsets, plan.call.shape.mask.key_blocks,
                    item.first / kBlockRows, plan.num_tiles) {}
};

/// A stage of the ring, and the parity of the round.
template <int kStages>
struct Place {
  uint32_t slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++slot == kStages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

/// Fetches all keys and values of this block's items. One thread.
template <int kHeadDim, int kSubs, bool kBlocks>
__device__ __forceinline__ void copy_keys(const Plan& plan, const Maps& maps, uint32_t memory) {
  using M = Memory<kHeadDim, kSubs>;
  Place<M::kStages> place;
  for (int number = plan.rounds.first(static_cast<int>(blockIdx.x)); number < plan.num_items;
       number = plan.rounds.next(number)) {
    const Item item(plan, number, M::kQueries);
    const Tiles<kBlocks> tiles(plan, item);
#pragma unroll 1
    for (int tile = 0; tile < tiles.count; ++tile, place.advance()) {
      const uint32_t stage = memory + M::kRing + place.slot * M::kStageBytes;
      const uint32_t keys_full = memory + M::kKeysFull + place.slot * 8;
      const uint32_t values_full = memory + M::kValuesFull + place.slot * 8;
      const int first = tiles.first_row(tile);
      wait_for(memory + M::kEmpty + place.slot * 8, place.parity ^ 1);
      expect_bytes(keys_full, M::kTileBytes);
      load_rows<kHeadDim>(stage, kPlane, maps.k, first, item.h, item.b, keys_full);
      expect_bytes(values_full, M::kTileBytes);
      load_rows<kHeadDim>(stage + M::kTileBytes, kPlane, maps.v, first, item.h, item.b,
                          values_full);
    }
  }
}

/// Fetches all queries of this block's items. One thread.
template <int kHeadDim, int kSubs>
__device__ __forceinline__ void copy_queries(const Plan& plan, const Maps& maps, uint32_t memory) {
  using M = Memory<kHeadDim, kSubs>;
  uint32_t items = 0;
  for (int number = plan.rounds.first(static_cast<int>(blockIdx.x)); number < plan.num_items;
       number = plan.rounds.next(number), ++items) {
    const Item item(plan, number, M::kQueries);
    const uint32_t buffer = items % kBuffers;
    const uint32_t full = memory + M::kQueriesFull + buffer * 8;
    wait_for(memory + M::kQueriesEmpty + buffer * 8, (items / kBuffers & 1) ^ 1);
    expect_bytes(full, M::kQueryBytes);
#pragma unroll 1
    for (int tile = 0; tile < M::kTiles; ++tile) {
      load_rows<kHeadDim>(memory + M::kQ + buffer * M::kQueryBytes + tile * M::kTileBytes, kPlane,
                          maps.q, item.first + tile * kTileRows, item.h, item.b, full);
    }
  }
}

/// A thread's part of 64 queries: rows g and g + 8 of its warp's 16.
template <int kHeadDim>
struct Queries {
  float out[kHeadDim / 8][4];
  float max[2];  ///< the reference of the exponents, in powers of two
  float sum[2];  ///< this thread's columns
};

/// The lower half of an operand, which alone depends on the address (in units of 16 bytes).
__device__ __forceinline__ uint32_t lower(uint64_t operand) {
  return static_cast<uint32_t>(operand);
}

/// The operand with this lower half; the upper one is the same for all.
__device__ __forceinline__ uint64_t with_lower(uint32_t low) {
  return (over_dim(0) & 0xffffffff00000000U) | low;
}

/// Starts S = Q K^T of a tile of queries and one of keys.
/// @param q  lower(over_dim) of the first plane;  @param k  likewise
template <typename T, int kHeadDim>
__device__ __forceinline__ void start_scores(float (&s)[kScoreTiles][4], uint32_t q, uint32_t k) {
#pragma unroll
  for (int plane = 0; plane < kPlanes<kHeadDim>; ++plane) {
    Product<T, kScoreTiles>::template of_shared<0>(s, with_lower(q + plane * (kPlane / 16)),
                                                   with_lower(k + plane * (kPlane / 16)),
                                                   plane > 0 ? 1 : 0);
  }
}

/// Starts O += P V with a tile of values, or O = P V with the first one.
/// @param v  lower(over_rows) of the first rows
template <typename T, int kHeadDim, bool kFirst>
__device__ __forceinline__ void start_output(float (&out)[kHeadDim / 8][4],
                                             const uint32_t (&p)[kScoreTiles / 2][4], uint32_t v) {
  constexpr uint32_t kStep = 16 * kPlaneElements * 2;  // bytes of 16 rows
#pragma unroll
  for (int step = 0; step < kScoreTiles / 2; ++step) {
    Product<T, kHeadDim / 8>::template of_registers<1>(
        out, p[step], with_lower(v + step * (kStep / 16)), kFirst && step == 0 ? 0 : 1);
  }
}

/// Keys from `count` on do not count.
__device__ __forceinline__ void mask_scores(float (&s)[kScoreTiles][4], int count, int lane) {
  if (count < kTileRows) {
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (8 * n + 2 * (lane & 3) + i % 2 >= count) {
          s[n][i] = -INFINITY;
        }
      }
    }
  }
}

/// e = exp(scale S - max) and their sums; raises the maximum where it must be. The first tile of
/// keys sets both.
/// @param factors  what the output so far must be multiplied with
/// @return whether they are not 1
template <int kHeadDim, bool kFirst>
__device__ __forceinline__ bool add_scores(Queries<kHeadDim>& queries, float (&factors)[2],
                                           float (&e)[kScoreTiles][4],
                                           const float (&s)[kScoreTiles][4], float scale_log2) {
  float local[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float even = s[0][2 * half];
    float odd = s[0][2 * half + 1];
#pragma unroll
    for (int n = 1; n < kScoreTiles; ++n) {
      even = fmaxf(even, s[n][2 * half]);
      odd = fmaxf(odd, s[n][2 * half + 1]);
    }
    local[half] = scale_log2 * fmaxf(even, odd);
  }
  const bool raised =
      kFirst || any_lane(local[0] > queries.max[0] + kSlack || local[1] > queries.max[1] + kSlack);
  if (raised) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = fmaxf(local[half], shuffle_xor(local[half], 1));
      highest = fmaxf(highest, shuffle_xor(highest, 2));
      // Not -inf: nothing is subtracted from itself.
      highest = fmaxf(highest, kFirst ? -FLT_MAX : queries.max[half]);
      if constexpr (!kFirst) {
        factors[half] = exp2_approx(queries.max[half] - highest);
        queries.sum[half] *= factors[half];
      }
      queries.max[half] = highest;
    }
  }
  if constexpr (kFirst) {
    queries.sum[0] = 0.0F;
    queries.sum[1] = 0.0F;
  }
#pragma unroll
  for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      e[n][2 * half] = exp2_approx(fmaf(s[n][2 * half], scale_log2, -queries.max[half]));
      e[n][2 * half + 1] = exp2_approx(fmaf(s[n][2 * half + 1], scale_log2, -queries.max[half]));
      queries.sum[half] += e[n][2 * half] + e[n][2 * half + 1];
    }
  }
  return !kFirst && raised;
}

template <int kHeadDim>
__device__ __forceinline__ void rescale(Queries<kHeadDim>& queries, const float (&factors)[2]) {
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      queries.out[n][i] *= factors[i / 2];
    }
  }
}

/// P as operands.
template <typename T>
__device__ __forceinline__ void pack_scores(uint32_t (&p)[kScoreTiles / 2][4],
                                            const float (&e)[kScoreTiles][4]) {
#pragma unroll
  for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      p[n / 2][n % 2 * 2 + half] = pack<T>(e[n][2 * half], e[n][2 * half + 1]);
    }
  }
}

/// Of a warpgroup that computes.
__device__ __forceinline__ void sync_group(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kGroupThreads) : "memory");
}

/// Where a chunk (16 bytes) of the output is on its way, in a warp's 16 rows. 8 rows of a chunk are
/// in different banks, and so are 8 chunks that are neighbours in memory.
template <int kHeadDim>
__device__ __forceinline__ uint32_t staged(int row, int chunk) {
  constexpr int kChunks = kHeadDim / 8;
  static_assert(kChunks % 8 == 0 || kChunks % 2 == 1);
  return (row * kChunks + (kChunks % 8 == 0 ? chunk ^ (row & 7) : chunk)) * 16;
}

/// Writes a warp's 16 rows of the output and lse.
/// @param stage  16 rows in shared memory that nobody needs any more
template <typename T, int kHeadDim>
__device__ __forceinline__ void store_queries(const Queries<kHeadDim>& queries, const Plan& plan,
                                              uint32_t stage, const Item& item, int first_row,
                                              int lane) {
  constexpr int kChunks = kHeadDim / 8;
  const AttentionShape& shape = plan.call.shape;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int num_rows = static_cast<int>(shape.query_length) - first_row;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = half * 8 + g;
    float sum = queries.sum[half];
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    const float inverse = __fdividef(1.0F, sum);  // no slow path: sum <= 2^8 keys
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      store_shared(
          stage + staged<kHeadDim>(row, c) + t * 4,
          pack<T>(queries.out[c][2 * half] * inverse, queries.out[c][2 * half + 1] * inverse));
    }
    if (plan.call.lse != nullptr && t == 0 && row < num_rows) {
      plan.call.lse[(static_cast<int64_t>(item.b) * shape.heads + item.h) * shape.query_length +
                    first_row + row] = (queries.max[half] + log2f(sum)) * kLn2;
    }
  }
  __syncwarp();
  uint16_t* out = row_of(plan.call.out, item.b, first_row, item.h);
#pragma unroll
  for (int first = 0; first < 16 * kChunks; first += 32) {
    const int i = first + lane;
    const int row = i / kChunks;
    const int chunk = i - row * kChunks;
    if (i < 16 * kChunks && row < num_rows) {
      *reinterpret_cast<uint4*>(out + row * plan.call.out.row_stride + chunk * 8) =
          load_shared_uint4(stage + staged<kHeadDim>(row, chunk));
    }
  }
}

/// What the other warpgroups do.
/// @param group  of them;  @param warp  of the group
template <typename T, int kHeadDim, int kSubs, bool kBlocks>
__device__ __forceinline__ void compute_items(const Plan& plan, uint32_t memory, int group,
                                              int warp, int lane) {
  using M = Memory<kHeadDim, kSubs>;
  const uint32_t first_queries = lower(over_dim(memory + M::kQ + group * M::kTileBytes));
  const uint32_t first_keys = lower(over_dim(memory + M::kRing));
  const uint32_t first_values = lower(over_rows(memory + M::kRing + M::kTileBytes, kPlane));
  Queries<kHeadDim> queries[kSubs] = {};
  float s[kSubs][kScoreTiles][4];
  Place<M::kStages> place;  // of the tile of keys
  uint32_t items = 0;
  const auto tile_of_sub = [&](int sub) { return sub * kConsumers + group; };
  const auto start_sub = [&](int sub, uint32_t item, uint32_t slot) {
    const uint32_t offset = item % kBuffers * M::kQueryBytes + sub * (kConsumers * M::kTileBytes);
    start_scores<T, kHeadDim>(s[sub], first_queries + offset / 16,
                              first_keys + slot * (M::kStageBytes / 16));
  };
  const auto finish_sub = [&](int sub) {
    wait_products<0>();
    pin(queries[sub].out);
    pin(s[sub]);
  };
  const auto wait_for_queries = [&](uint32_t item) {
    wait_for(memory + M::kQueriesFull + item % kBuffers * 8, item / kBuffers & 1);
  };
  const auto wait_for_keys = [&](const Place<M::kStages>& at) {
    wait_for(memory + M::kKeysFull + at.slot * 8, at.parity);
  };
  const auto wait_for_values = [&](const Place<M::kStages>& at) {
    wait_for(memory + M::kValuesFull + at.slot * 8, at.parity);
  };
  const auto store_sub = [&](int sub, int number, uint32_t item) {
    const int tile = tile_of_sub(sub);
    const int row = tile * kTileRows + warp * 16;
    const Item stored(plan, number, M::kQueries);
    const uint32_t stage = memory + M::kQ + item % kBuffers * M::kQueryBytes +
                           tile * M::kTileBytes + warp * (16 * kHeadDim * 2);
    sync_group(group);  // all warps have seen the end of the products with these queries
    store_queries<T, kHeadDim>(queries[sub], plan, stage, stored, stored.first + row, lane);
  };
  // One tile of keys for all tiles of queries. At entry the scores of the first of these are there
  // and those of the last one may be on their way. The next tile of keys may be the next item's;
  // behind the last item, products of whatever is there, which nobody looks at, keep this code free
  // of branches between the products.
  const auto step = [&](auto is_first, int previous, int number, const Tiles<kBlocks>& tiles,
                        int num_keys, int tile) {
    constexpr bool kFirst = decltype(is_first)::value;
    const bool last = tile + 1 == tiles.count;
    const bool has_next = !last || plan.rounds.next(number) < plan.num_items;
    const uint32_t next_item = items + (last ? 1 : 0);
    const uint32_t previous_slot = (place.slot == 0 ? M::kStages : place.slot) - 1;
    Place<M::kStages> next = place;
    next.advance();
#pragma unroll
    for (int sub = 0; sub < kSubs; ++sub) {
      if constexpr (kFirst) {
        if (items > 0) {
          store_sub(sub, previous, items - 1);
          if (sub + 1 == kSubs) {
            publish_shared();  // the copy engine writes there next
            arrive_warp(memory + M::kQueriesEmpty + (items - 1) % kBuffers * 8, lane);
          }
        }
      }
      mask_scores(s[sub], num_keys - tiles.first_row(tile), lane);
      float e[kScoreTiles][4];
      float factors[2];
      const bool raised =
          add_scores<kHeadDim, kFirst>(queries[sub], factors, e, s[sub], plan.scale_log2);
      // The waits also keep the exponentials ahead of the wait for the products.
      if (has_next) {
        if (sub == 0) {
          if (last) {
            wait_for_queries(next_item);
          }
          wait_for_keys(next);
        }
        if (sub + 1 == kSubs) {
          wait_for_values(next);
        }
      }
      if constexpr (kSubs > 1) {
        finish_sub(1 - sub);
      }
      if (sub == 0 && (!kFirst || items > 0)) {
        arrive_warp(memory + M::kEmpty + previous_slot * 8, lane);
      }
      if (raised) {
        rescale(queries[sub], factors);
      }
      uint32_t p[kScoreTiles / 2][4];
      pack_scores<T>(p, e);
      begin_products();
      start_output<T, kHeadDim, kFirst>(queries[sub].out, p,
                                        first_values + place.slot * (M::kStageBytes / 16));
      start_sub(sub, next_item, next.slot);
      commit_products();
      if constexpr (kSubs == 1) {
        finish_sub(0);
      }
    }
    place = next;
  };

  wait_for_queries(0);
  wait_for_keys(place);
  begin_products();
#pragma unroll
  for (int sub = 0; sub < kSubs; ++sub) {
    start_sub(sub, 0, place.slot);
  }
  commit_products();
#pragma unroll
  for (int sub = 0; sub < kSubs; ++sub) {
    finish_sub(sub);
  }
  wait_for_values(place);
  int previous = 0;
  int number = plan.rounds.first(static_cast<int>(blockIdx.x));
  do {  // at least one
    const Item item(plan, number, M::kQueries);
    const Tiles<kBlocks> tiles(plan, item);
    const int num_keys = kBlocks ? key_range(plan.call.shape, item.b).count
                                 : static_cast<int>(plan.call.shape.key_length);
    step(std::true_type(), previous, number, tiles, num_keys, 0);
#pragma unroll 1
    for (int tile = 1; tile < tiles.count; ++tile) {
      step(std::false_type(), previous, number, tiles, num_keys, tile);
    }
    ++items;
    previous = number;
    number = plan.rounds.next(number);
  } while (number < plan.num_items);
  finish_sub(kSubs - 1);
#pragma unroll
  for (int sub = 0; sub < kSubs; ++sub) {
    store_sub(sub, previous, items - 1);
  }
}

template <typename T, int kHeadDim, int kSubs, bool kBlocks>
__device__ __forceinline__ void walk(const Plan& plan, const Maps& maps) {
  using M = Memory<kHeadDim, kSubs>;
  const uint32_t memory = shared_base();
  const int thread = static_cast<int>(threadIdx.x);
  // The same in all lanes, which the compiler cannot know.
  const int warp = __shfl_sync(0xffffffffU, thread >> 5, 0);
  if (thread == 0) {
    constexpr int kWarps = kConsumers * kGroupThreads / 32;
    for (int slot = 0; slot < M::kStages; ++slot) {
      init_barrier(memory + M::kKeysFull + slot * 8, 1);
      init_barrier(memory + M::kValuesFull + slot * 8, 1);
      init_barrier(memory + M::kEmpty + slot * 8, kWarps);
    }
    for (int buffer = 0; buffer < kBuffers; ++buffer) {
      init_barrier(memory + M::kQueriesFull + buffer * 8, 1);
      init_barrier(memory + M::kQueriesEmpty + buffer * 8, kWarps);
    }
    publish_shared();
  }
  __syncthreads();
  if (warp < 4) {
    set_registers<24, false>();
    if (warp == 0 && is_elected()) {
      copy_keys<kHeadDim, kSubs, kBlocks>(plan, maps, memory);
    } else if (warp == 1 && is_elected()) {
      copy_queries<kHeadDim, kSubs>(plan, maps, memory);
    }
  } else {
    set_registers<240, true>();
    compute_items<T, kHeadDim, kSubs, kBlocks>(plan, memory, warp / 4 - 1, warp % 4, thread & 31);
  }
}

#endif

/// kSubs: tiles of queries of a warpgroup. kBlocks: over a mask of blocks.
template <typename T, int kHeadDim, int kSubs, bool kBlocks>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_forward_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  walk<T, kHeadDim, kSubs, kBlocks>(plan, maps);
#else
  __trap();
#endif
}

int64_t items_of_head(const AttentionShape& shape, int subs) {
  const int64_t queries = static_cast<int64_t>(subs) * kConsumers * kTileRows;
  return ceil_div(shape.query_length, queries);
}

template <typename T, int kHeadDim, int kSubs, bool kBlocks>
cudaError_t launch_as(const AttentionForward& call, const Gpu& gpu, cudaStream_t stream) {
  const AttentionShape& shape = call.shape;
  Plan plan;
  plan.call = call;
  plan.scale_log2 = shape.scale * kLog2E;
  plan.num_tiles = static_cast<int>(tiles_of(shape.key_length));
  plan.head_items = static_cast<int>(items_of_head(shape, kSubs));
  plan.num_items = static_cast<int>(shape.batch * shape.heads) * plan.head_items;
  Maps maps;
  cudaError_t error = make_tensor_map(call.q, shape, shape.query_length, kTileRows, &maps.q);
  if (error == cudaSuccess) {
    error = make_tensor_map(call.k, shape, shape.key_length, kTileRows, &maps.k);
  }
  if (error == cudaSuccess) {
    error = make_tensor_map(call.v, shape, shape.key_length, kTileRows, &maps.v);
  }
  if (error != cudaSuccess) {
    return error;
  }
  const auto kernel = wgmma_forward_kernel<T, kHeadDim, kSubs, kBlocks>;
  constexpr int kBytes = Memory<kHeadDim, kSubs>::kBytes;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) {
    return error;
  }
  plan.rounds = Rounds(plan.num_items, std::min(plan.num_items, gpu.num_multiprocessors));
  kernel<<<plan.rounds.workers, kThreads, kBytes, stream>>>(plan, maps);
  return cudaGetLastError();
}

template <typename T, int kHeadDim>
cudaError_t launch_typed(const AttentionForward& call, const Gpu& gpu, cudaStream_t stream) {
  // Two tiles a warpgroup keep the tensor cores busier and read K and V half as often, but leave
  // more of the last items, and of the last round over the multiprocessors, empty.
  const auto cost = [&](int subs) {
    const int64_t items = call.shape.batch * call.shape.heads * items_of_head(call.shape, subs);
    return subs * ceil_div(items, gpu.num_multiprocessors);
  };
  // They also need two tiles of keys an item: its first step would else wait for the next queries
  // before it frees their buffer.
  const bool single = call.shape.key_length <= kTileRows || 8 * cost(1) < 7 * cost(2);
  return single ? launch_as<T, kHeadDim, 1, false>(call, gpu, stream)
                : launch_as<T, kHeadDim, 2, false>(call, gpu, stream);
}

template <int kHeadDim>
cudaError_t launch(const AttentionForward& call, const Gpu& gpu, cudaStream_t stream) {
  return call.shape.type == DType::kBF16 ? launch_typed<Bf16, kHeadDim>(call, gpu, stream)
                                         : launch_typed<F16, kHeadDim>(call, gpu, stream);
}

template <int kHeadDim>
cudaError_t launch_blocks(const AttentionForward& call, const Gpu& gpu, cudaStream_t stream) {
  return call.shape.type == DType::kBF16 ? launch_as<Bf16, kHeadDim, 1, true>(call, gpu, stream)
                                         : launch_as<F16, kHeadDim, 1, true>(call, gpu, stream);
}

/// What both kinds have in common.
bool has_fitting_sizes(const AttentionShape& shape, const Gpu& gpu) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const int64_t tiles = tiles_of(shape.query_length);
  return gpu.capability == 90 && (shape.type == DType::kBF16 || shape.type == DType::kF16) &&
         shape.scale > 0.0F && shape.query_length >= 1 && shape.query_length <= kMax / 2 &&
         shape.key_length >= 1 && shape.key_length <= kMax / 2 && shape.batch >= 0 &&
         shape.heads >= 0 && shape.batch * shape.heads <= kMax / tiles;
}

}  // namespace

bool wgmma_forward_supported([[maybe_unused]] const AttentionShape& shape,
                             [[maybe_unused]] const Gpu& gpu) {
#if defined(KINORA_HAS_SM90A)
  return has_fitting_sizes(shape, gpu) && (shape.head_dim == 64 || shape.head_dim == 72) &&
         shape.has_equal_keys() && shape.query_length > kTileRows;
#else
  return false;
#endif
}

bool blocks_supported([[maybe_unused]] const AttentionShape& shape,
                      [[maybe_unused]] const Gpu& gpu) {
#if defined(KINORA_HAS_SM90A)
  return has_fitting_sizes(shape, gpu) && shape.key_offsets == nullptr &&
         (shape.head_dim == 64 || shape.head_dim == 72 || shape.head_dim == 128);
#else
  return false;
#endif
}

cudaError_t launch_wgmma_forward(const AttentionForward& call, const Gpu& gpu,
                                 cudaStream_t stream) {
  return call.shape.head_dim == 64 ? launch<64>(call, gpu, stream) : launch<72>(call, gpu, stream);
}

cudaError_t launch_blocks_forward(const AttentionForward& call, const Gpu& gpu,
                                  cudaStream_t stream) {
  switch (call.shape.head_dim) {
    case 64:
      return launch_blocks<64>(call, gpu, stream);
    case 72:
      return launch_blocks<72>(call, gpu, stream);
    default:
      return launch_blocks<128>(call, gpu, stream);
  }
}

}  // namespace kinora::kernels::cuda::attention
