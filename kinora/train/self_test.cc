#include "kinora/train/self_test.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <sstream>

#include "kinora/core/error.h"
#include "kinora/core/log.h"

namespace kinora::train {
namespace {

/// A sum of the weights' bits, each times an odd number of its place: collisions are one in 2^60.
std::vector<int64_t> fingerprints(const std::vector<nn::NamedParameter>& parameters,
                                  const optim::Arena& arena) {
  constexpr int64_t kSpread = 0x4F1BBCDCBFA53E0A;  // even, so that 1 + it times a place is odd
  std::vector<at::Tensor> sums;
  for (const nn::NamedParameter& named : parameters) {
    const optim::Arena::Part own = arena.own_part(named.path, optim::Role::master());
    const at::Tensor bits = arena.fetched(own.values).view(at::kInt).to(at::kLong);
    const at::Tensor places =
        at::arange(own.begin, own.begin + bits.numel(), bits.options()) * kSpread + 1;
    sums.push_back((bits * places).sum());
  }
  at::Tensor all = at::stack(sums);
  if (arena.options().sharding.divides()) {
    arena.options().sharding.group.all_reduce(all);
  }
  all = all.to(at::kCPU);
  return {all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel()};
}

/// "2 parameters have had no gradient:" and their names, or nothing where there is none.
std::string said_of(const std::vector<std::string>& names, const std::string& what) {
  if (names.empty()) {
    return "";
  }
  std::ostringstream text;
  text << "\n"
       << names.size() << (names.size() == 1 ? " parameter has " : " parameters have ") << what
       << ":";
  for (const std::string& name : names) {
    text << "\n  " << name;
  }
  return text.str();
}

}  // namespace

SelfTest::SelfTest(std::vector<nn::NamedParameter> parameters, const optim::Arena& arena)
    : parameters_(std::move(parameters)),
      largest_gradient_(at::zeros({static_cast<int64_t>(parameters_.size())},
                                  at::device(arena.options().device).dtype(at::kFloat))),
      first_fingerprint_(fingerprints(parameters_, arena)) {}

void SelfTest::see(const optim::Arena& arena, optim::Role role) {
  std::vector<at::Tensor> largest;
  for (const nn::NamedParameter& named : parameters_) {
    const at::Tensor own = arena.fetched(arena.own_part(named.path, role).values);
    largest.push_back(own.numel() > 0 ? own.abs().max() : at::zeros({}, own.options()));
  }
  largest_gradient_ = at::maximum(largest_gradient_, at::stack(largest));
}

void SelfTest::see_gradients(const optim::Arena& arena) {
  see(arena, optim::Role::grad());
}

void SelfTest::see_moments(const optim::Arena& arena) {
  const bool coded = arena.options().moments == kernels::MomentFormat::k8Bit;
  const bool has_first = optim::keeps_first_moments(arena.options().rule);
  see(arena, coded       ? optim::Role::exp_avg_scales()
             : has_first ? optim::Role::exp_avg()
                         : optim::Role::exp_avg_sq());
}

void SelfTest::finish(const optim::Arena& arena, SmallSteps small_steps) const {
  at::Tensor largest = largest_gradient_.clone();
  arena.options().sharding.group.all_reduce(largest, comm::Reduction::kMax);
  largest = largest.to(at::kCPU);
  const std::vector<int64_t> now = fingerprints(parameters_, arena);
  std::vector<std::string> without_gradient;
  std::vector<std::string> unmoved;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (largest.const_data_ptr<float>()[i] == 0.0F) {
      without_gradient.push_back(parameters_[i].path);
    } else if (now[i] == first_fingerprint_[i]) {
      unmoved.push_back(parameters_[i].path);
    }
  }
  const std::string said = said_of(unmoved, "not moved");
  const bool is_lost = !unmoved.empty() && small_steps == SmallSteps::kStop;
  KINORA_CHECK(without_gradient.empty() && !is_lost, kDiverged, "[self_test] after ", kSteps,
               " steps", said_of(without_gradient, "had no gradient"), said,
               "\nHint: a learning rate of almost 0 does this too; train.self_test=false goes on");
  if (!unmoved.empty()) {
    log_warn("[self_test] after ", kSteps, " steps", said,
             "\nTheir steps are lost in rounding so far. A higher learning rate moves them");
  }
}

}  // namespace kinora::train
