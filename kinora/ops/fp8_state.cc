#include "kinora/ops/fp8_state.h"

#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <sstream>

namespace kinora::ops {
namespace {

std::string shape_fault(const char* name, const at::Tensor& tensor, at::IntArrayRef expected) {
  if (tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.sizes() == expected) {
    return "";
  }
  std::ostringstream text;
  text << name << " must be F32 " << expected << ", got ";
  if (tensor.defined()) {
    text << tensor.scalar_type() << ' ' << tensor.sizes();
  } else {
    text << "nothing";
  }
  return text.str();
}

/// `allowed` says which values may be.
template <typename Allowed>
std::string value_fault(const char* name, const at::Tensor& tensor, const char* what,
                        const Allowed& allowed) {
  const at::Tensor dense = tensor.contiguous();
  const std::span<const float> values(dense.const_data_ptr<float>(),
                                      static_cast<size_t>(dense.numel()));
  const auto wrong = std::find_if_not(values.begin(), values.end(), allowed);
  if (wrong == values.end()) {
    return "";
  }
  std::ostringstream text;
  text << name << " must be " << what << ", got " << *wrong << " at " << (wrong - values.begin());
  return text.str();
}

}  // namespace

std::string fault_of(const Fp8State& state) {
  const int64_t num_linears = state.amax.defined() && state.amax.dim() > 0 ? state.amax.size(0) : 0;
  std::string fault = shape_fault("amax", state.amax, {num_linears, 2});
  if (fault.empty()) {
    fault = shape_fault("history", state.history, {num_linears, 2, kFp8History});
  }
  if (fault.empty()) {
    fault = shape_fault("scale", state.scale, {num_linears, 2});
  }
  if (fault.empty()) {
    fault = value_fault("amax", state.amax, "no negative number",
                        [](float value) { return !(value < 0.0F); });
  }
  if (fault.empty()) {
    fault = value_fault("history", state.history, "finite and not negative",
                        [](float value) { return std::isfinite(value) && value >= 0.0F; });
  }
  if (fault.empty()) {
    fault = value_fault("scale", state.scale, "finite and positive",
                        [](float value) { return std::isfinite(value) && value > 0.0F; });
  }
  return fault;
}

}  // namespace kinora::ops
