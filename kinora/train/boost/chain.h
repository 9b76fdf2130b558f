#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/parallel/pipeline.h"

namespace torch::nn {
class Module;
}

namespace kinora::train {

/// The children of a torch::nn::Sequential, of which ranks have consecutive ones, their stages
/// (pipeline parallelism).
class Chain {
 public:
  /// The torch::nn::Sequential called `name` in `module`; "": the module itself. The ranks of
  /// `group` divide it by its parameters into `chunks` stages each, and all make one. kConfig where
  /// there is no such Sequential, or it has fewer children than stages.
  Chain(torch::nn::Module& module, const std::string& name, const comm::Group& group,
        int64_t chunks);

  /// The rank of the group that has the parameters and buffers of this path; nothing: all have
  /// them.
  [[nodiscard]] std::optional<int64_t> rank_of(const std::string& path) const;
  [[nodiscard]] int64_t size() const { return std::ssize(children_); }
  /// Children first, ..., end - 1 one after another.
  [[nodiscard]] at::Tensor forward(int64_t first, int64_t end, at::Tensor x) const;
  /// Null: this rank has all of it.
  [[nodiscard]] parallel::PipelineLinks* links() const { return links_.get(); }

 private:
  std::vector<std::function<at::Tensor(const at::Tensor&)>> children_;
  std::vector<std::string> prefixes_;  // "blocks.3.", of all children
  std::unique_ptr<parallel::PipelineLinks> links_;
};

/// Whether the module is a torch::nn::Sequential.
[[nodiscard]] bool is_chain(const torch::nn::Module& module);

}  // namespace kinora::train
