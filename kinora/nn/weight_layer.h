#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/nn/low_rank.h"
#include "kinora/nn/module.h"

namespace kinora::nn {

/// How the ranks of a group may divide a linear's weight [out, in].
struct Cut {
  /// kOutputs: each makes some of y, from all of x, which all have. kInputs: each has some of x,
  /// and y is the sum of what they make; the bias is added once.
  enum class Dim : uint8_t { kOutputs, kInputs };
  Dim dim = Dim::kOutputs;
  std::vector<Stretch> stretches;
  /// Of kInputs, one stretch: all have all of x, and each reads its part.
  bool reads_whole = false;

  /// That of `inputs` numbers, whatever they are.
  [[nodiscard]] static Cut of_whole_inputs(int64_t inputs) {
    return {.dim = Dim::kInputs, .stretches = {{inputs, inputs}}, .reads_whole = true};
  }
};

/// A layer that computes with one weight and a bias, and may have a trained update of the weight:
/// Linear and Conv.
class WeightLayer : public Module {
 public:
  /// Adds a trained low-rank update and freezes what is there. Before the parameters have their
  /// memory.
  void adapt(const LowRankOptions& options);
  /// Null: none.
  [[nodiscard]] const LowRankUpdate* update() const { return update_.get(); }

  /// Nothing: nobody divides it.
  [[nodiscard]] const std::optional<Cut>& cut() const { return cut_; }
  /// Keeps this rank's part of what cut() says, of the update, too. Before the parameters have
  /// their memory. The group divides the units. kConfig where the update cannot be cut.
  void divide(const comm::Group& group);
  /// The ranks that divide it.
  [[nodiscard]] const comm::Group& group() const { return group_; }
  [[nodiscard]] bool is_divided() const { return group_.size() > 1; }

  Parameter weight;
  Parameter bias;  ///< registered if there is one

 protected:
  WeightLayer() = default;
  ~WeightLayer() = default;
  void set_cut(Cut cut) { cut_ = std::move(cut); }

 private:
  std::optional<Cut> cut_;
  comm::Group group_;
  std::unique_ptr<LowRankUpdate> update_;
};

}  // namespace kinora::nn
