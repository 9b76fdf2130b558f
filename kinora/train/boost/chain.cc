#include "kinora/train/boost/chain.h"

#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <utility>

#include "kinora/core/error.h"

namespace kinora::train {
namespace {

torch::nn::SequentialImpl& find(torch::nn::Module& module, const std::string& name) {
  torch::nn::Module* found = &module;
  if (!name.empty()) {
    const auto modules = module.named_modules("", /*include_self=*/false);
    const std::shared_ptr<torch::nn::Module>* entry = modules.find(name);
    found = entry == nullptr ? nullptr : entry->get();
  }
  auto* const sequential = dynamic_cast<torch::nn::SequentialImpl*>(found);
  KINORA_CHECK(sequential != nullptr, kConfig, "[booster] ",
               name.empty() ? "the torch::nn::Module" : "what `stages` names, " + name + ",",
               found == nullptr ? " is not in the module" : " is no torch::nn::Sequential",
               ", whose children ranks could divide. Hint: name one in `stages` (docs/booster.md)");
  return *sequential;
}

}  // namespace

Chain::Chain(torch::nn::Module& module, const std::string& name, const comm::Group& group,
             int64_t chunks) {
  torch::nn::SequentialImpl& sequential = find(module, name);
  std::vector<double> costs;
  auto next = sequential.begin();
  for (const auto& child : sequential.named_children()) {
    if (next == sequential.end() || child.value() != next->ptr()) {
      continue;  // of a class of the user's, which has registered it beside
    }
    children_.emplace_back(
        [child = *next](const at::Tensor& x) mutable { return child.forward(x); });
    prefixes_.push_back((name.empty() ? "" : name + ".") + child.key() + ".");
    double& cost = costs.emplace_back(0.0);
    for (const at::Tensor& parameter : child.value()->parameters()) {
      cost += static_cast<double>(parameter.numel());
    }
    ++next;
  }
  if (group.size() > 1) {
    links_ = std::make_unique<parallel::PipelineLinks>(
        group, parallel::plan_stages(costs, group.size(), chunks));
  }
}

std::optional<int64_t> Chain::rank_of(const std::string& path) const {
  const auto child = std::ranges::find_if(
      prefixes_, [&path](const std::string& prefix) { return path.starts_with(prefix); });
  if (links_ == nullptr || child == prefixes_.end()) {
    return std::nullopt;
  }
  const parallel::StagePlan& plan = links_->plan();
  return plan.rank_of(plan.stage_of_block(child - prefixes_.begin()));
}

at::Tensor Chain::forward(int64_t first, int64_t end, at::Tensor x) const {
  for (int64_t i = first; i < end; ++i) {
    x = children_[static_cast<size_t>(i)](x);
  }
  return x;
}

bool is_chain(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr;
}

}  // namespace kinora::train
