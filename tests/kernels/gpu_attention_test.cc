#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/attention.h"
#include "kinora/kernels/elements.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace gpu_attention_test {

using GpuAttentionTest = GpuTest;

enum class Layout {
  kPacked,    ///< q, k, v in one array [B, N, 3, H, D]
  kTemporal,  ///< the same with rows of all samples interleaved, [N, B, 3, H, D]
  kSeparate,  ///< q [B, Nq, H, D]; k, v [B, Nk, 2, H, D]
};

struct Case {
  int64_t batch, heads, queries, keys, head_dim;
  Layout layout = Layout::kPacked;
  std::vector<int32_t> key_offsets = {};
  /// Of each block of queries; none: no mask.
  std::vector<std::vector<int32_t>> key_blocks = {};
  std::vector<int32_t> key_lengths = {};
};

/// BlockMask's lists, one behind the other, from `lists` of each block.
struct BlockLists {
  explicit BlockLists(const std::vector<std::vector<int32_t>>& lists) {
    for (const std::vector<int32_t>& list : lists) {
      blocks.insert(blocks.end(), list.begin(), list.end());
      offsets.push_back(static_cast<int32_t>(blocks.size()));
    }
  }
  std::vector<int32_t> offsets = {0};
  std::vector<int32_t> blocks;
};

/// The same by keys, of so many blocks of them.
std::vector<std::vector<int32_t>> by_keys(const std::vector<std::vector<int32_t>>& lists,
                                          int64_t blocks) {
  std::vector<std::vector<int32_t>> result(static_cast<size_t>(blocks));
  for (size_t i = 0; i < lists.size(); ++i) {
    for (const int32_t block : lists[i]) {
      result[static_cast<size_t>(block)].push_back(static_cast<int32_t>(i));
    }
  }
  return result;
}

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "B" << c.batch << " H" << c.heads << " Nq" << c.queries << " Nk" << c.keys << " D"
             << c.head_dim << (c.key_offsets.empty() ? "" : " ragged")
             << (c.key_blocks.empty() ? "" : " masked") << (c.key_lengths.empty() ? "" : " padded");
}

constexpr uint16_t kUntouched = 0x7f42;  // no result has these bits
constexpr int64_t kGap = 8;              // elements behind each row, which nobody may write

/// The arrays of a problem, in the memory of the CPU or the GPU.
struct Arrays {
  uint16_t* queries;
  uint16_t* keys;
  uint16_t* dout;
  uint16_t* out;
  uint16_t* dqueries;
  uint16_t* dkeys;
  float* lse;
  const int32_t* key_offsets;
  const int32_t* key_lengths;
  BlockMask mask;
};

/// Where the tensors lie in the arrays.
class Views {
 public:
  explicit Views(const Case& c) : case_(c), width_(c.heads * c.head_dim) {}

  [[nodiscard]] size_t query_elements() const {
    return static_cast<size_t>(case_.batch * case_.queries * query_row());
  }
  [[nodiscard]] size_t key_elements() const {
    const int64_t rows =
        case_.key_offsets.empty() ? case_.batch * case_.keys : case_.key_offsets.back() + 1;
    return case_.layout == Layout::kSeparate ? static_cast<size_t>(rows * key_row()) : 0;
  }
  [[nodiscard]] size_t out_elements() const {
    return static_cast<size_t>(case_.batch * case_.queries * out_row());
  }
  [[nodiscard]] AttentionShape shape(DType type, const Arrays& a) const {
    return {.batch = case_.batch,
            .heads = case_.heads,
            .query_length = case_.queries,
            .key_length = case_.keys,
            .head_dim = case_.head_dim,
            .type = type,
            .scale = 1.0F / std::sqrt(static_cast<float>(case_.head_dim)),
            .key_offsets = case_.key_offsets.empty() ? nullptr : a.key_offsets,
            .key_lengths = case_.key_lengths.empty() ? nullptr : a.key_lengths,
            .mask = case_.key_blocks.empty() ? BlockMask() : a.mask};
  }
  [[nodiscard]] AttentionForward forward(DType type, const Arrays& a) const {
    return {shape(type, a),
            view(a.queries, query_row(), case_.queries),
            key(a.queries, a.keys, 0),
            key(a.queries, a.keys, 1),
            view(a.out, out_row(), case_.queries),
            a.lse};
  }
  [[nodiscard]] AttentionBackward backward(DType type, const Arrays& a) const {
    const AttentionForward f = forward(type, a);
    return {f.shape,
            f.q,
            f.k,
            f.v,
            f.out,
            view(a.dout, out_row(), case_.queries),
            a.lse,
            view(a.dqueries, query_row(), case_.queries),
            key(a.dqueries, a.dkeys, 0),
            key(a.dqueries, a.dkeys, 1)};
  }

 private:
  [[nodiscard]] int64_t query_row() const {
    return (case_.layout == Layout::kSeparate ? 1 : 3) * width_ + kGap;
  }
  [[nodiscard]] int64_t key_row() const { return 2 * width_ + kGap; }
  [[nodiscard]] int64_t out_row() const { return width_ + kGap; }
  [[nodiscard]] HeadsView view(uint16_t* data, int64_t row, int64_t length) const {
    return case_.layout == Layout::kTemporal
               ? HeadsView{data, row, case_.batch * row, case_.head_dim}
               : HeadsView{data, length * row, row, case_.head_dim};
  }
  [[nodiscard]] HeadsView key(uint16_t* queries, uint16_t* keys, int64_t part) const {
    return case_.layout == Layout::kSeparate
               ? view(keys + part * width_, key_row(), case_.keys)
               : view(queries + (part + 1) * width_, query_row(), case_.keys);
  }

  Case case_;
  int64_t width_;
};

std::vector<uint16_t> random_bits(size_t count, uint64_t sample, DType type) {
  const std::vector<float> values = random_values(static_cast<int64_t>(count), sample);
  std::vector<uint16_t> bits(count);
  for (size_t i = 0; i < count; ++i) {
    store_element(bits.data(), static_cast<int64_t>(i), type, values[i]);
  }
  return bits;
}

/// Inputs, and outputs in which nothing has been written yet.
struct HostProblem {
  HostProblem(const Case& c, DType type)
      : views(c),
        queries(random_bits(views.query_elements(), 1, type)),
        keys(random_bits(views.key_elements(), 2, type)),
        dout(random_bits(views.out_elements(), 3, type)),
        out(views.out_elements(), kUntouched),
        dqueries(views.query_elements(), kUntouched),
        dkeys(views.key_elements(), kUntouched),
        lse(static_cast<size_t>(c.batch * c.heads * c.queries), 77.0F),
        key_offsets(c.key_offsets),
        key_lengths(c.key_lengths),
        by_query(c.key_blocks),
        by_key(by_keys(c.key_blocks, ceil_div(c.keys, BlockMask::kRows))) {}

  [[nodiscard]] Arrays arrays() {
    return {queries.data(),
            keys.data(),
            dout.data(),
            out.data(),
            dqueries.data(),
            dkeys.data(),
            lse.data(),
            key_offsets.data(),
            key_lengths.data(),
            {by_query.offsets.data(), by_query.blocks.data(), by_key.offsets.data(),
             by_key.blocks.data()}};
  }

  Views views;
  std::vector<uint16_t> queries, keys, dout, out, dqueries, dkeys;
  std::vector<float> lse;
  std::vector<int32_t> key_offsets, key_lengths;
  BlockLists by_query, by_key;
};

/// The problem in the GPU's memory.
struct DeviceProblem {
  explicit DeviceProblem(const HostProblem& host)
      : queries(host.queries),
        keys(host.keys),
        dout(host.dout),
        out(host.out),
        dqueries(host.dqueries),
        dkeys(host.dkeys),
        lse(host.lse),
        key_offsets(host.key_offsets),
        key_lengths(host.key_lengths),
        by_query_offsets(host.by_query.offsets),
        by_query_blocks(host.by_query.blocks),
        by_key_offsets(host.by_key.offsets),
        by_key_blocks(host.by_key.blocks) {}

  [[nodiscard]] Arrays arrays() const {
    return {queries.data(),
            keys.data(),
            dout.data(),
            out.data(),
            dqueries.data(),
            dkeys.data(),
            lse.data(),
            key_offsets.data(),
            key_lengths.data(),
            {by_query_offsets.data(), by_query_blocks.data(), by_key_offsets.data(),
             by_key_blocks.data()}};
  }

  DeviceArray<uint16_t> queries, keys, dout, out, dqueries, dkeys;
  DeviceArray<float> lse;
  DeviceArray<int32_t> key_offsets, key_lengths;
  DeviceArray<int32_t> by_query_offsets, by_query_blocks, by_key_offsets, by_key_blocks;
};

void run_backward(const AttentionBackward& call) {
  const size_t bytes = cuda::attention_backward_workspace_bytes(call.shape);
  // NaN everywhere: the kernels must not need zeros.
  const DeviceArray<uint64_t> workspace{std::vector<uint64_t>(bytes / 8 + 1, ~uint64_t{0})};
  ASSERT_EQ(cuda::attention_backward(call, workspace.data(), nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

void* shifted(const HeadsView& view, int64_t b) {
  return static_cast<uint16_t*>(view.data) + b * view.batch_stride;
}

/// Sample b alone of a call.
template <typename Call>
Call sample_of(const Call& call, int64_t b) {
  Call one = call;
  one.shape.batch = 1;
  one.q.data = shifted(call.q, b);
  one.out.data = shifted(call.out, b);
  const bool ragged = call.shape.key_offsets != nullptr;
  if (call.shape.key_lengths != nullptr) {
    one.shape.key_lengths += b;
  }
  if (ragged) {
    one.shape.key_offsets += b;
  } else {
    one.k.data = shifted(call.k, b);
    one.v.data = shifted(call.v, b);
  }
  if (one.lse != nullptr) {
    one.lse += b * call.shape.heads * call.shape.query_length;
  }
  if constexpr (std::is_same_v<Call, AttentionBackward>) {
    one.dout.data = shifted(call.dout, b);
    one.dq.data = shifted(call.dq, b);
    if (!ragged) {
      one.dk.data = shifted(call.dk, b);
      one.dv.data = shifted(call.dv, b);
    }
  }
  return one;
}

/// The CPU reference with a thread for every share of the samples.
template <typename Call>
void run_reference(const Call& call) {
  const int64_t num_threads =
      std::min<int64_t>(call.shape.batch, std::max(1U, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (int64_t first = 0; first < num_threads; ++first) {
    threads.emplace_back([&call, first, num_threads] {
      for (int64_t b = first; b < call.shape.batch; b += num_threads) {
        if constexpr (std::is_same_v<Call, AttentionBackward>) {
          attention_backward(sample_of(call, b));
        } else {
          attention_forward(sample_of(call, b));
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

/// Probabilities, and the gradients of scores twice, are rounded before they are summed up: up to
/// three roundings more than of a result alone. Errors are compared with the largest number, since
/// a sum's parts are rounded, not the sum alone.
void expect_near(const std::vector<uint16_t>& got, const std::vector<uint16_t>& want, DType type,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double largest = 0.05;  // where all cancel, what is left is rounding
  double worst = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (want[i] == kUntouched || got[i] == kUntouched) {
      ASSERT_EQ(got[i], want[i]) << what << ": an element too much or too little, " << i;
      continue;
    }
    const auto index = static_cast<int64_t>(i);
    const double value = load_element(want.data(), index, type);
    const double error = std::fabs(load_element(got.data(), index, type) - value);
    largest = std::max(largest, std::fabs(value));
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  EXPECT_LE(worst, 4.0 * tolerance_of(type) * largest) << what << ", largest " << largest;
}

void compare(const Case& c, DType type) {
  SCOPED_TRACE(testing::Message() << c << " " << to_string(type));
  HostProblem host(c, type);
  const DeviceProblem device(host);
  ASSERT_TRUE(cuda::attention_supported(host.views.shape(type, host.arrays())));

  run_reference(host.views.forward(type, host.arrays()));
  ASSERT_EQ(cuda::attention_forward(host.views.forward(type, device.arrays()), nullptr),
            cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  expect_near(device.out.host(), host.out, type, "out");
  const std::vector<float> lse = device.lse.host();
  for (size_t i = 0; i < lse.size(); ++i) {
    const bool same = lse[i] == host.lse[i];  // also -inf
    ASSERT_TRUE(same || std::fabs(lse[i] - host.lse[i]) < 1e-4F) << "lse " << i;
  }

  host.out = device.out.host();  // both see the rounded one
  run_reference(host.views.backward(type, host.arrays()));
  run_backward(host.views.backward(type, device.arrays()));
  expect_near(device.dqueries.host(), host.dqueries, type, "gradients");
  expect_near(device.dkeys.host(), host.dkeys, type, "gradients of the keys");
}

TEST_F(GpuAttentionTest, EqualsTheCpuAtAllLengths) {
  for (const int64_t length : {1, 5, 16, 31, 63, 64, 65, 96, 200, 255, 256, 257, 512, 700}) {
    compare({1, 2, length, length, 72}, DType::kBF16);
  }
  compare({1, 1, 1024, 1024, 72}, DType::kBF16);
  compare({3, 2, 200, 200, 72}, DType::kF16);
}

TEST_F(GpuAttentionTest, EqualsTheCpuAtAllHeadDims) {
  for (const int64_t head_dim : {32, 40, 64, 72, 80, 96, 128, 160}) {
    for (const DType type : {DType::kBF16, DType::kF16}) {
      compare({3, 1, 17, 17, head_dim}, type);
      compare({2, 2, 256, 256, head_dim}, type);
    }
    compare({1, 2, 300, 300, head_dim}, DType::kBF16);
    compare({2, 1, 130, 77, head_dim, Layout::kSeparate}, DType::kBF16);
  }
}

TEST_F(GpuAttentionTest, EqualsTheCpuAtTheEdgesOfTiles) {
  int64_t i = 0;
  for (const int64_t queries : {64, 65, 128, 200, 256, 257, 1000, 1024}) {
    for (const int64_t keys : {1, 63, 64, 65, 250, 256}) {
      // Both head_dims and both types with every length, though not all of their products.
      const int64_t head_dim = i % 2 == 0 ? 72 : 64;
      const DType type = i % 3 == 0 ? DType::kF16 : DType::kBF16;
      compare({i % 4 == 0 ? 3 : 1, 1, queries, keys, head_dim, Layout::kSeparate}, type);
      ++i;
    }
    ++i;
  }
  compare({1, 1, 1000, 1024, 72, Layout::kSeparate}, DType::kBF16);
  compare({1, 1, 64, 1024, 72, Layout::kSeparate}, DType::kF16);
  compare({1, 2, 1024, 700, 64, Layout::kSeparate}, DType::kBF16);
}

TEST_F(GpuAttentionTest, EqualsTheCpuInAllLayouts) {
  for (const Layout layout : {Layout::kPacked, Layout::kTemporal, Layout::kSeparate}) {
    for (const int64_t length : {64, 65, 128, 200, 256, 257}) {
      compare({3, 2, length, length, 72, layout}, DType::kBF16);
    }
    compare({1, 3, 320, 320, 64, layout}, DType::kF16);
  }
}

TEST_F(GpuAttentionTest, EqualsTheCpuWithMoreHeadsThanMultiprocessors) {
  compare({20, 16, 64, 64, 72}, DType::kBF16);
  compare({10, 16, 256, 256, 72}, DType::kBF16);
  compare({10, 16, 130, 260, 64, Layout::kSeparate}, DType::kBF16);
  // So many heads that a block has several tiles of queries of each.
  compare({34, 16, 129, 64, 72, Layout::kSeparate}, DType::kBF16);
  compare({34, 16, 256, 256, 72, Layout::kTemporal}, DType::kBF16);
  compare({34, 16, 200, 65, 64, Layout::kSeparate}, DType::kF16);
  compare({34, 16, 257, 129, 72, Layout::kSeparate}, DType::kBF16);
}

TEST_F(GpuAttentionTest, EqualsTheCpuWithManyShortSequences) {
  compare({257, 2, 5, 5, 72}, DType::kBF16);
  for (const int64_t length : {1, 4, 16, 17, 33, 64}) {
    compare({257, 8, length, length, 72, Layout::kTemporal}, DType::kBF16);
  }
}

// A warp has a whole sequence: of 16 tokens, of 32, and beyond them the other kernels.
TEST_F(GpuAttentionTest, EqualsTheCpuWithShortSequencesOfEveryHeadDim) {
  for (const int64_t head_dim : {32, 40, 64, 72, 80, 96, 128, 160}) {
    for (const int64_t length : {1, 7, 15, 16, 17, 30, 32, 33}) {
      compare({3, 5, length, length, head_dim, Layout::kTemporal}, DType::kBF16);
    }
    compare({3, 5, 16, 16, head_dim}, DType::kF16);
    compare({7, 3, 9, 14, head_dim, Layout::kSeparate}, DType::kBF16);
    compare({7, 3, 30, 3, head_dim, Layout::kSeparate}, DType::kF16);
    compare({7, 3, 2, 31, head_dim, Layout::kSeparate}, DType::kBF16);
  }
}

TEST_F(GpuAttentionTest, EqualsTheCpuWithOtherKeysThanQueries) {
  constexpr int64_t kLengths[][2] = {{64, 16}, {200, 300}, {1000, 77}, {17, 600},
                                     {1, 257}, {40, 1},    {4100, 120}};
  for (const auto& length : kLengths) {
    compare({3, 2, length[0], length[1], 72, Layout::kSeparate}, DType::kBF16);
  }
}

TEST_F(GpuAttentionTest, EqualsTheCpuWithRaggedKeys) {
  const std::vector<int32_t> short_keys = {2, 79, 79, 80, 200, 320};
  const std::vector<int32_t> long_keys = {0, 300, 300, 301, 557, 634};
  for (const int64_t queries : {33, 130, 1500}) {
    compare({5, 2, queries, 120, 72, Layout::kSeparate, short_keys}, DType::kBF16);
    compare({5, 2, queries, 300, 72, Layout::kSeparate, long_keys}, DType::kBF16);
  }
  compare({5, 32, 64, 120, 64, Layout::kSeparate, short_keys}, DType::kF16);
}

bool has_masks() {
  AttentionShape shape{1, 1, 256, 256, 64, DType::kBF16};
  const int32_t any = 0;
  shape.mask.key_offsets = &any;
  return cuda::attention_supported(shape);
}

/// Every so many of all pairs of blocks, and the diagonal.
std::vector<std::vector<int32_t>> some_blocks(int64_t queries, int64_t keys, uint64_t each) {
  const auto blocks = [](int64_t rows) { return ceil_div(rows, BlockMask::kRows); };
  std::vector<std::vector<int32_t>> lists(static_cast<size_t>(blocks(queries)));
  uint64_t state = 1;
  for (size_t i = 0; i < lists.size(); ++i) {
    for (int64_t j = 0; j < blocks(keys); ++j) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      if ((state >> 33U) % each == 0 || static_cast<int64_t>(i) % blocks(keys) == j) {
        lists[i].push_back(static_cast<int32_t>(j));
      }
    }
  }
  return lists;
}

TEST_F(GpuAttentionTest, EqualsTheCpuOverAMaskOfBlocks) {
  if (!has_masks()) {
    GTEST_SKIP() << "no own kernels over masks on this GPU";
  }
  const auto masked = [](Case c, uint64_t each) {
    c.key_blocks = some_blocks(c.queries, c.keys, each);
    return c;
  };
  for (const int64_t head_dim : {64, 72, 128}) {
    // Last blocks with one tile, with a part of one, with both.
    for (const int64_t length : {1, 64, 128, 129, 192, 193, 700, 1024}) {
      compare(masked({2, 2, length, length, head_dim}, 3), DType::kBF16);
    }
    compare(masked({1, 2, 640, 640, head_dim, Layout::kTemporal}, 2), DType::kF16);
    compare(masked({1, 1, 300, 900, head_dim, Layout::kSeparate}, 4), DType::kBF16);
    compare(masked({1, 1, 900, 300, head_dim, Layout::kSeparate}, 4), DType::kF16);
    compare(masked({1, 2, 512, 512, head_dim}, 1), DType::kBF16);       // all
    compare(masked({1, 2, 1300, 1300, head_dim}, 1000), DType::kBF16);  // one each
  }
  // More items than multiprocessors.
  compare(masked({5, 16, 515, 515, 64}, 2), DType::kBF16);
  // Blocks of keys that nobody attends to have no gradient.
  Case alone{1, 2, 256, 512, 128, Layout::kSeparate};
  alone.key_blocks = {{1}, {1, 3}};
  compare(alone, DType::kBF16);
}

TEST_F(GpuAttentionTest, EqualsTheCpuOverAMaskWithLengthsOfKeys) {
  if (!has_masks()) {
    GTEST_SKIP() << "no own kernels over masks on this GPU";
  }
  for (const int64_t head_dim : {64, 128}) {
    Case c{3, 2, 700, 700, head_dim, Layout::kSeparate};
    c.key_blocks = some_blocks(700, 700, 2);
    for (std::vector<int32_t>& list : c.key_blocks) {
      if (list.front() != 0) {
        list.insert(list.begin(), 0);
      }
    }
    c.key_lengths = {700, 513, 90};
    compare(c, DType::kBF16);
  }
}

TEST_F(GpuAttentionTest, GivesTheSameBitsTwice) {
  std::vector<Case> cases = {
      {9, 4, 257, 257, 72}, {1, 3, 1000, 256, 72, Layout::kSeparate}, {140, 4, 129, 129, 72}};
  if (has_masks()) {
    cases.push_back({2, 4, 700, 700, 128});
    cases.back().key_blocks = some_blocks(700, 700, 2);
  }
  for (const Case& c : cases) {
    HostProblem host(c, DType::kBF16);
    std::vector<std::vector<uint16_t>> results;
    for (int i = 0; i < 2; ++i) {
      const DeviceProblem device(host);
      ASSERT_EQ(cuda::attention_forward(host.views.forward(DType::kBF16, device.arrays()), nullptr),
                cudaSuccess);
      run_backward(host.views.backward(DType::kBF16, device.arrays()));
      results.push_back(device.out.host());
      results.push_back(device.dqueries.host());
      results.push_back(device.dkeys.host());
    }
    EXPECT_TRUE(results[0] == results[3]) << c;
    EXPECT_TRUE(results[1] == results[4]) << c;
    EXPECT_TRUE(results[2] == results[5]) << c;
  }
}

TEST_F(GpuAttentionTest, WorksWithoutLse) {
  const Case c = {2, 2, 65, 65, 72};
  HostProblem host(c, DType::kBF16);
  const DeviceProblem with(host);
  const DeviceProblem without(host);
  AttentionForward call = host.views.forward(DType::kBF16, with.arrays());
  ASSERT_EQ(cuda::attention_forward(call, nullptr), cudaSuccess);
  call = host.views.forward(DType::kBF16, without.arrays());
  call.lse = nullptr;
  ASSERT_EQ(cuda::attention_forward(call, nullptr), cudaSuccess);
  EXPECT_TRUE(with.out.host() == without.out.host());
  EXPECT_TRUE(without.lse.host() == host.lse);
}

TEST_F(GpuAttentionTest, LargeScoresDoNotOverflow) {
  const Case c = {1, 2, 100, 100, 72};
  HostProblem host(c, DType::kBF16);
  const DeviceProblem device(host);
  AttentionForward got = host.views.forward(DType::kBF16, device.arrays());
  AttentionForward want = host.views.forward(DType::kBF16, host.arrays());
  got.shape.scale = want.shape.scale = 8.0F;
  attention_forward(want);
  ASSERT_EQ(cuda::attention_forward(got, nullptr), cudaSuccess);
  expect_near(device.out.host(), host.out, DType::kBF16, "out");
}

/// NaN and infinities of the CPU's result must be there, and no others.
void expect_same_specials(const std::vector<uint16_t>& got, const std::vector<uint16_t>& want,
                          DType type, const char* what) {
  for (size_t i = 0; i < got.size(); ++i) {
    const float value = load_element(got.data(), static_cast<int64_t>(i), type);
    const float expected = load_element(want.data(), static_cast<int64_t>(i), type);
    ASSERT_EQ(std::isnan(value), std::isnan(expected)) << what << " " << i;
    ASSERT_EQ(std::isinf(value), std::isinf(expected)) << what << " " << i;
  }
}

TEST_F(GpuAttentionTest, SpecialNumbersPropagate) {
  const DType type = DType::kBF16;
  constexpr float kSpecials[] = {std::numeric_limits<float>::quiet_NaN(),
                                 std::numeric_limits<float>::infinity()};
  const Case c = {2, 2, 70, 70, 72};
  const auto row = static_cast<size_t>(3 * 2 * 72 + kGap);
  for (const float special : kSpecials) {
    for (const size_t part : {0, 1, 2}) {  // of q, k, v
      SCOPED_TRACE(testing::Message() << special << " in part " << part);
      HostProblem host(c, type);
      store_element(host.queries.data(), static_cast<int64_t>(40 * row + part * 144 + 72 + 3), type,
                    special);
      const DeviceProblem device(host);
      attention_forward(host.views.forward(type, host.arrays()));
      ASSERT_EQ(cuda::attention_forward(host.views.forward(type, device.arrays()), nullptr),
                cudaSuccess);
      expect_same_specials(device.out.host(), host.out, type, "out");
      if (std::isnan(special)) {
        attention_backward(host.views.backward(type, host.arrays()));
        run_backward(host.views.backward(type, device.arrays()));
        expect_same_specials(device.dqueries.host(), host.dqueries, type, "gradients");
      }
    }
  }
}

TEST_F(GpuAttentionTest, RefusesWhatItCannotDo) {
  const Case c = {2, 2, 64, 64, 72};
  HostProblem host(c, DType::kBF16);
  const DeviceProblem device(host);
  const AttentionForward good = host.views.forward(DType::kBF16, device.arrays());
  AttentionForward call = good;
  call.shape.type = DType::kF32;
  EXPECT_FALSE(cuda::attention_supported(call.shape));
  EXPECT_EQ(cuda::attention_forward(call, nullptr), cudaErrorNotSupported);
  call = good;
  call.shape.head_dim = 48;
  EXPECT_FALSE(cuda::attention_supported(call.shape));
  call = good;
  call.q.data = static_cast<uint16_t*>(call.q.data) + 1;
  EXPECT_EQ(cuda::attention_forward(call, nullptr), cudaErrorInvalidValue);
  call = good;
  call.k.row_stride += 4;
  EXPECT_EQ(cuda::attention_forward(call, nullptr), cudaErrorInvalidValue);
  AttentionBackward backward = host.views.backward(DType::kBF16, device.arrays());
  backward.dv.data = static_cast<uint16_t*>(backward.dv.data) + 4;
  EXPECT_EQ(cuda::attention_backward(backward, nullptr, nullptr), cudaErrorInvalidValue);
  call = good;
  call.shape.batch = 0;
  EXPECT_EQ(cuda::attention_forward(call, nullptr), cudaSuccess);
}

}  // namespace gpu_attention_test
}  // namespace kinora::kernels
