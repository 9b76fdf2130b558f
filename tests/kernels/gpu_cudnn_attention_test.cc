#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "kinora/core/error.h"
#include "kinora/kernels/attention.h"
#include "kinora/kernels/cuda/cudnn_attention.h"
#include "kinora/kernels/elements.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/tolerance.h"

namespace kinora::kernels {
namespace gpu_cudnn_attention_test {

class GpuCudnnAttentionTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_available()) {
      GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    }
    AttentionForward call;
    call.shape = {1, 1, 64, 64, 64, DType::kF16, 1.0F, nullptr};
    for (HeadsView* view : {&call.q, &call.k, &call.v, &call.out}) {
      *view = {nullptr, 64 * 64, 64, 64};
    }
    const std::string reason = cuda::CudnnAttention(false).unsupported_reason(call);
    if (reason.find("this build") == 0) {
      GTEST_SKIP() << reason;
    }
    ASSERT_EQ(reason, "");
  }
};

struct Case {
  int64_t batch, heads, queries, keys, head_dim;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "B" << c.batch << " H" << c.heads << " Nq" << c.queries << " Nk" << c.keys << " D"
             << c.head_dim;
}

constexpr Case kCases[] = {
    {1, 1, 1, 1, 64},     {1, 2, 1, 1, 72},      {1, 2, 2, 2, 72},      {3, 2, 17, 17, 64},
    {9, 2, 64, 64, 72},   {3, 3, 100, 100, 72},  {2, 2, 31, 65, 64},    {1, 1, 1, 257, 72},
    {3, 2, 256, 256, 72}, {1, 2, 257, 257, 128}, {9, 1, 129, 129, 128}, {2, 16, 256, 256, 72},
};

/// Elements without a number of ours: written to where they must not be, they show.
constexpr float kUntouched = 77.0F;
constexpr int64_t kGap = 8;  // elements behind each row of the outputs

/// The tensors of a call, of floats or of 16-bit bits. Queries as long as the keys: q, k, v packed
/// [B, N, 3, H, D]; else q [B, Nq, H, D] and k, v packed [B, Nk, 2, H, D].
class Layout {
 public:
  Layout(const Case& c, int64_t gap) : case_(c), packed_(c.queries == c.keys), gap_(gap) {}

  [[nodiscard]] int64_t query_elements() const { return case_.batch * case_.queries * query_row(); }
  [[nodiscard]] int64_t key_elements() const {
    return packed_ ? 0 : case_.batch * case_.keys * key_row();
  }

  template <typename T>
  [[nodiscard]] HeadsView q(T* queries) const {
    return view(queries, case_.queries, query_row());
  }
  /// part: 0 for k, 1 for v.
  template <typename T>
  [[nodiscard]] HeadsView key(T* queries, T* keys, int64_t part) const {
    return packed_ ? view(queries + (part + 1) * width(), case_.keys, query_row())
                   : view(keys + part * width(), case_.keys, key_row());
  }

 private:
  [[nodiscard]] int64_t width() const { return case_.heads * case_.head_dim; }
  [[nodiscard]] int64_t query_row() const { return (packed_ ? 3 : 1) * width() + gap_; }
  [[nodiscard]] int64_t key_row() const { return 2 * width() + gap_; }
  template <typename T>
  [[nodiscard]] HeadsView view(T* data, int64_t length, int64_t row) const {
    return {data, length * row, row, case_.head_dim};
  }

  Case case_;
  bool packed_;
  int64_t gap_;
};

std::vector<uint16_t> to_bits(const std::vector<float>& values, DType type) {
  std::vector<uint16_t> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    store_element(bits.data(), static_cast<int64_t>(i), type, values[i]);
  }
  return bits;
}

std::vector<float> to_floats(const std::vector<uint16_t>& bits, DType type) {
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) {
    values[i] = load_element(bits.data(), static_cast<int64_t>(i), type);
  }
  return values;
}

/// Normal numbers that the type has exactly.
std::vector<float> normals(int64_t count, unsigned seed, DType type) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = normal(engine);
  }
  return to_floats(to_bits(values, type), type);
}

/// Inputs, and outputs in which nothing has been written yet.
struct HostProblem {
  HostProblem(const Case& c, DType type)
      : in(c, 0),
        out(c, kGap),
        queries(normals(in.query_elements(), 1, type)),
        keys(normals(in.key_elements(), 2, type)),
        dresult(normals(c.batch * c.queries * c.heads * c.head_dim, 3, type)),
        result(dresult.size()),
        dqueries(static_cast<size_t>(out.query_elements()), kUntouched),
        dkeys(static_cast<size_t>(out.key_elements()), kUntouched),
        lse(static_cast<size_t>(c.batch * c.heads * c.queries)) {}

  Layout in, out;
  std::vector<float> queries, keys, dresult, result, dqueries, dkeys, lse;
};

template <typename T>
struct Arrays {
  T* queries;
  T* keys;
  T* dresult;
  T* result;
  T* dqueries;
  T* dkeys;
  float* lse;
};

AttentionShape shape_of(const Case& c, DType type) {
  return {c.batch,
          c.heads,
          c.queries,
          c.keys,
          c.head_dim,
          type,
          1.0F / std::sqrt(static_cast<float>(c.head_dim)),
          nullptr};
}

HeadsView plain(void* data, const Case& c) {
  return {data, c.queries * c.heads * c.head_dim, c.heads * c.head_dim, c.head_dim};
}

template <typename T>
AttentionForward forward_of(const Case& c, const Layout& in, DType type, const Arrays<T>& a) {
  return {shape_of(c, type),
          in.q(a.queries),
          in.key(a.queries, a.keys, 0),
          in.key(a.queries, a.keys, 1),
          plain(a.result, c),
          a.lse};
}

template <typename T>
AttentionBackward backward_of(const Case& c, const Layout& in, const Layout& out, DType type,
                              const Arrays<T>& a) {
  return {shape_of(c, type),
          in.q(a.queries),
          in.key(a.queries, a.keys, 0),
          in.key(a.queries, a.keys, 1),
          plain(a.result, c),
          plain(a.dresult, c),
          a.lse,
          out.q(a.dqueries),
          out.key(a.dqueries, a.dkeys, 0),
          out.key(a.dqueries, a.dkeys, 1)};
}

/// The problem in the GPU's memory.
class DeviceProblem {
 public:
  DeviceProblem(const Case& c, DType type, const HostProblem& host)
      : case_(c),
        type_(type),
        in_(host.in),
        out_(host.out),
        queries_(to_bits(host.queries, type)),
        keys_(to_bits(host.keys, type)),
        dresult_(to_bits(host.dresult, type)),
        result_(to_bits(host.result, type)),
        dqueries_(to_bits(host.dqueries, type)),
        dkeys_(to_bits(host.dkeys, type)),
        lse_(host.lse) {}

  [[nodiscard]] AttentionForward forward(bool with_lse = true) const {
    Arrays<uint16_t> a = arrays();
    a.lse = with_lse ? a.lse : nullptr;
    return forward_of(case_, in_, type_, a);
  }
  [[nodiscard]] AttentionBackward backward() const {
    return backward_of(case_, in_, out_, type_, arrays());
  }
  [[nodiscard]] std::vector<float> result() const { return to_floats(result_.host(), type_); }
  [[nodiscard]] std::vector<float> dqueries() const { return to_floats(dqueries_.host(), type_); }
  [[nodiscard]] std::vector<float> dkeys() const { return to_floats(dkeys_.host(), type_); }
  [[nodiscard]] std::vector<float> lse() const { return lse_.host(); }

 private:
  [[nodiscard]] Arrays<uint16_t> arrays() const {
    return {queries_.data(),  keys_.data(),  dresult_.data(), result_.data(),
            dqueries_.data(), dkeys_.data(), lse_.data()};
  }

  Case case_;
  DType type_;
  Layout in_, out_;
  DeviceArray<uint16_t> queries_, keys_, dresult_, result_, dqueries_, dkeys_;
  DeviceArray<float> lse_;
};

/// Runs one direction with a workspace of the size asked for. (Of 8-byte elements: so the guard
/// before it leaves it aligned to 512 bytes.)
template <typename Call>
void run(cuda::CudnnAttention& attention, const Call& call) {
  const DeviceArray<uint64_t> workspace{
      std::vector<uint64_t>(attention.workspace_bytes(call) / 8 + 1)};
  if constexpr (std::is_same_v<Call, AttentionForward>) {
    attention.forward(call, workspace.data(), nullptr);
  } else {
    attention.backward(call, workspace.data(), nullptr);
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

/// Errors are compared with the largest number: a sum's parts are rounded, not the sum alone.
void expect_near(const std::vector<float>& got, const std::vector<float>& expected,
                 double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  double largest = 0.05;  // where all cancel, what is left is rounding
  for (const float value : expected) {
    largest = value == kUntouched ? largest : std::max(largest, std::fabs(double{value}));
  }
  double worst = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (expected[i] == kUntouched) {
      ASSERT_EQ(got[i], kUntouched) << what << ": written outside of the rows, at " << i;
    } else {
      const double error = std::fabs(double{got[i]} - double{expected[i]});
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  }
  EXPECT_LE(worst, tolerance * largest) << what << ", largest " << largest;
}

/// Probabilities and scores' gradients are rounded before they are multiplied: two roundings more
/// than of a result alone.
double sums_tolerance_of(DType type) {
  return 3.0 * tolerance_of(type);
}

/// Shapes that the main models have must be there; what cuDNN leaves out is named in its reason.
bool may_be_unsupported(const Case& c) {
  return c.queries == 1 || c.keys == 1;
}

void compare(cuda::CudnnAttention& attention, const Case& c, DType type) {
  SCOPED_TRACE(testing::Message() << c << " " << to_string(type));
  HostProblem host(c, type);
  const DeviceProblem device(c, type, host);
  const DeviceProblem without_lse(c, type, host);
  const Arrays<float> arrays = {host.queries.data(), host.keys.data(),     host.dresult.data(),
                                host.result.data(),  host.dqueries.data(), host.dkeys.data(),
                                host.lse.data()};
  const std::string reason = attention.unsupported_reason(device.forward());
  if (!reason.empty()) {
    EXPECT_TRUE(may_be_unsupported(c)) << reason;
    return;
  }
  attention_forward(forward_of(c, host.in, DType::kF32, arrays));
  run(attention, device.forward());
  expect_near(device.result(), host.result, sums_tolerance_of(type), "out");
  expect_near(device.lse(), host.lse, 1e-4, "lse");

  run(attention, without_lse.forward(false));
  expect_near(without_lse.result(), host.result, sums_tolerance_of(type), "out without lse");

  const std::string backward_reason = attention.unsupported_reason(device.backward());
  if (!backward_reason.empty()) {
    EXPECT_TRUE(may_be_unsupported(c)) << backward_reason;
    return;
  }
  const std::vector<float> result = device.result();  // both see the rounded one
  std::copy(result.begin(), result.end(), host.result.begin());
  attention_backward(backward_of(c, host.in, host.out, DType::kF32, arrays));
  run(attention, device.backward());
  expect_near(device.dqueries(), host.dqueries, sums_tolerance_of(type), "gradients");
  expect_near(device.dkeys(), host.dkeys, sums_tolerance_of(type), "gradients of the keys");
}

TEST_F(GpuCudnnAttentionTest, EqualsTheCpu) {
  cuda::CudnnAttention attention(false);
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const Case& c : kCases) {
      compare(attention, c, type);
    }
  }
}

TEST_F(GpuCudnnAttentionTest, EqualsTheCpuWhenDeterministic) {
  cuda::CudnnAttention attention(true);
  for (const Case& c : kCases) {
    compare(attention, c, DType::kBF16);
  }
}

TEST_F(GpuCudnnAttentionTest, GivesTheSameBitsTwiceWhenDeterministic) {
  const Case c = {9, 4, 257, 257, 72};
  const HostProblem host(c, DType::kBF16);
  std::vector<std::vector<float>> results;
  for (int i = 0; i < 2; ++i) {
    cuda::CudnnAttention attention(true);
    const DeviceProblem device(c, DType::kBF16, host);
    run(attention, device.forward());
    run(attention, device.backward());
    results.push_back(device.result());
    results.push_back(device.dqueries());
  }
  EXPECT_TRUE(results[0] == results[2]);
  EXPECT_TRUE(results[1] == results[3]);
}

TEST_F(GpuCudnnAttentionTest, RunsInACudaGraph) {
  const Case c = {3, 2, 256, 256, 72};
  const HostProblem host(c, DType::kBF16);
  cuda::CudnnAttention attention(true);
  const DeviceProblem eager(c, DType::kBF16, host);
  run(attention, eager.forward());
  run(attention, eager.backward());

  const DeviceProblem replayed(c, DType::kBF16, host);
  const AttentionForward forward = replayed.forward();
  const AttentionBackward backward = replayed.backward();
  const DeviceArray<uint64_t> workspace{std::vector<uint64_t>(
      std::max(attention.workspace_bytes(forward), attention.workspace_bytes(backward)) / 8 + 1)};
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  attention.forward(forward, workspace.data(), stream);
  attention.backward(backward, workspace.data(), stream);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  }
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_TRUE(replayed.result() == eager.result());
  EXPECT_TRUE(replayed.lse() == eager.lse());
  EXPECT_TRUE(replayed.dqueries() == eager.dqueries());
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(GpuCudnnAttentionTest, SaysWhatItDoesNotSupport) {
  const Case c = {2, 2, 64, 64, 72};
  const HostProblem host(c, DType::kBF16);
  const DeviceProblem device(c, DType::kBF16, host);
  cuda::CudnnAttention attention(false);
  AttentionForward call = device.forward();
  call.shape.type = DType::kF32;
  EXPECT_NE(attention.unsupported_reason(call).find("F32"), std::string::npos);
  call = device.forward();
  call.shape.head_dim = 70;
  EXPECT_NE(attention.unsupported_reason(call).find("70"), std::string::npos);
  call = device.forward();
  call.q.data = static_cast<uint16_t*>(call.q.data) + 1;
  EXPECT_NE(attention.unsupported_reason(call).find("16 bytes"), std::string::npos);
  EXPECT_THROW(attention.forward(call, nullptr, nullptr), Error);
  call = device.forward();
  const int32_t offsets[] = {0, 3, 64};
  call.shape.key_offsets = offsets;
  EXPECT_NE(attention.unsupported_reason(call).find("ragged"), std::string::npos);
  AttentionBackward backward = device.backward();
  backward.lse = nullptr;
  EXPECT_NE(attention.unsupported_reason(backward).find("lse"), std::string::npos);
  EXPECT_EQ(attention.unsupported_reason(device.forward()), "");
}

}  // namespace gpu_cudnn_attention_test
}  // namespace kinora::kernels
