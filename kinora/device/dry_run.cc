#include "kinora/device/dry_run.h"

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <c10/core/Allocator.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

namespace kinora::device {
namespace {

/// Allocators are libtorch's for the whole process, and so is this count.
struct Count {
  std::optional<c10::DeviceType> stands_for;
  int64_t live = 0;
  int64_t peak = 0;
  uintptr_t next_address = 0;
  bool counts = true;
};

Count& count() {
  static Count the_count;
  return the_count;
}

// CUDACachingAllocator's kMinBlockSize, and what the CPU's allocator aligns to.
constexpr int64_t kGpuBlock = 512;
constexpr int64_t kCpuBlock = 64;

/// Counts, and gives addresses that nobody may read, but that tell tensors apart and are aligned.
class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    Count& all = count();
    const int64_t block = all.stands_for == c10::DeviceType::CUDA ? kGpuBlock : kCpuBlock;
    const int64_t size = all.counts ? round_up(static_cast<int64_t>(bytes), block) : 0;
    all.live += size;
    all.peak = std::max(all.peak, all.live);
    all.next_address += static_cast<uintptr_t>(kGpuBlock);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): it is no address of anything
    auto* address = reinterpret_cast<void*>(all.next_address);
    all.next_address += round_up(bytes, kGpuBlock);
    return {address, std::make_unique<int64_t>(size).release(), &free,
            c10::Device(c10::DeviceType::Meta)};
  }
  void copy_data(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) const override {}

 private:
  static void free(void* context) {
    const std::unique_ptr<int64_t> size(static_cast<int64_t*>(context));
    count().live -= *size;
  }
};

}  // namespace

DryRun::DryRun(c10::DeviceType stands_for) {
  KINORA_CHECK(!in_dry_run(), kInternal, "[dry_run] there is one already");
  static CountingAllocator allocator;
  constexpr uint8_t kAboveLibtorchs = 1;
  c10::SetAllocator(c10::DeviceType::Meta, &allocator, kAboveLibtorchs);
  count().stands_for = stands_for;
  start_peak_anew();
}

DryRun::~DryRun() {
  count().stands_for.reset();
}

int64_t DryRun::live_bytes() {
  return count().live;
}
int64_t DryRun::peak_bytes() {
  return count().peak;
}
void DryRun::start_peak_anew() {
  count().peak = count().live;
}

NotCounted::NotCounted() {
  count().counts = false;
}
NotCounted::~NotCounted() {
  count().counts = true;
}

bool in_dry_run() {
  return count().stands_for.has_value();
}

bool is_gpu(c10::Device device) {
  return device.is_cuda() || (device.is_meta() && count().stands_for == c10::DeviceType::CUDA);
}

// What libtorch has for the meta device in Python alone: outputs as the CPU's and the GPU's kernels
// make them, without values.
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

at::TensorOptions floats(const Tensor& like) {
  return like.options().dtype(at::kFloat);
}

std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& x, at::SymIntArrayRef shape,
                                              const OptionalTensor& /*weight*/,
                                              const OptionalTensor& /*bias*/, double /*eps*/) {
  std::vector<int64_t> rows = x.sizes().vec();
  std::fill(rows.end() - static_cast<int64_t>(shape.size()), rows.end(), 1);
  return {at::empty_like(x), at::empty(rows, floats(x)), at::empty(rows, floats(x))};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(
    const Tensor& /*dy*/, const Tensor& x, at::SymIntArrayRef /*shape*/, const Tensor& /*mean*/,
    const Tensor& /*rstd*/, const OptionalTensor& weight, const OptionalTensor& bias,
    std::array<bool, 3> wanted) {
  return {wanted[0] ? at::empty_like(x) : Tensor(), wanted[1] ? at::empty_like(*weight) : Tensor(),
          wanted[2] ? at::empty_like(*bias) : Tensor()};
}

/// [B, H, N, D] that lies as [B, N, H, D].
Tensor heads_like(const Tensor& heads, int64_t head_dim) {
  return at::empty({heads.size(0), heads.size(2), heads.size(1), head_dim}, heads.options())
      .transpose(1, 2);
}

/// The statistics of rows, which every fused attention keeps.
std::tuple<Tensor, Tensor> attention(const Tensor& q, const Tensor& /*k*/, const Tensor& v,
                                     double /*dropout*/, bool /*causal*/,
                                     const OptionalTensor& /*mask*/,
                                     std::optional<double> /*scale*/) {
  return {heads_like(q, v.size(3)), at::empty({q.size(0), q.size(1), q.size(2)}, floats(q))};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(const Tensor& /*dout*/, const Tensor& q,
                                                      const Tensor& k, const Tensor& v,
                                                      const Tensor& /*out*/, const Tensor& /*lse*/,
                                                      double /*dropout*/, bool /*causal*/,
                                                      const OptionalTensor& /*mask*/,
                                                      std::optional<double> /*scale*/) {
  return {heads_like(q, q.size(3)), heads_like(k, k.size(3)), heads_like(v, v.size(3))};
}

/// On a CPU as on a GPU attention is fused where we use it; libtorch would compose it.
Tensor fused_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const OptionalTensor& mask, double dropout, bool causal,
                       std::optional<double> scale, bool /*grouped_queries*/) {
  OptionalTensor added = mask;
  if (mask && mask->scalar_type() == at::kBool) {
    added = at::empty(mask->sizes(), q.options());
  }
  return std::get<0>(
      at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, added, scale));
}

// NOLINTBEGIN(performance-unnecessary-value-param): as libtorch declares it
Tensor embedding_backward(const Tensor& gradient, const Tensor& /*indices*/, c10::SymInt count,
                          c10::SymInt /*padding*/, bool /*by_frequency*/) {
  return at::empty({count.expect_int(), gradient.size(-1)}, gradient.options());
}
// NOLINTEND(performance-unnecessary-value-param)

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  const std::vector<int64_t> sizes =
      at::infer_size(at::infer_size(condition.sizes(), a.sizes()), b.sizes());
  return at::empty(sizes, condition.options().dtype(at::result_type(a, b)));
}

Tensor logical(const Tensor& a, const Tensor& b) {
  return at::empty(at::infer_size(a.sizes(), b.sizes()), a.options().dtype(at::kBool));
}

Tensor logical_not(const Tensor& a) {
  return at::empty(a.sizes(), a.options().dtype(at::kBool));
}

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[static_cast<size_t>(at::maybe_wrap_dim(dim, x.dim()))] = index.numel();
  return at::empty(sizes, x.options());
}

Tensor flip(const Tensor& x, at::IntArrayRef /*dims*/) {
  return at::empty(x.sizes(), x.options());
}

Tensor searchsorted(const Tensor& /*sorted*/, const Tensor& values, bool /*out_int32*/,
                    bool /*right*/, std::optional<c10::string_view> /*side*/,
                    const OptionalTensor& /*sorter*/) {
  return at::empty(values.sizes(), values.options().dtype(at::kLong));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("flip", flip);
  library.impl("native_layer_norm", layer_norm);
  library.impl("native_layer_norm_backward", layer_norm_backward);
  library.impl("_scaled_dot_product_flash_attention_for_cpu", attention);
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward);
  library.impl("embedding_dense_backward", embedding_backward);
  library.impl("where.self", where);
  library.impl("logical_and", logical);
  library.impl("logical_or", logical);
  library.impl("logical_not", logical_not);
  library.impl("index_select", index_select);
  library.impl("searchsorted.Tensor", searchsorted);
}

TORCH_LIBRARY_IMPL(aten, AutogradMeta, library) {
  library.impl("scaled_dot_product_attention", fused_attention);
}

}  // namespace kinora::device
