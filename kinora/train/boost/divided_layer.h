#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/nn/box.h"

namespace c10 {
class OperatorHandle;
struct IValue;
}  // namespace c10

/// Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM", section 3) for torch::nn::Modules of
/// other people, by a table of the layers that ranks divide.
namespace kinora::train {

enum class LayerCut : uint8_t {
  /// Each rank computes its share of the outputs: features of a linear, channels of a convolution.
  /// What follows, up to a layer of kInputs, must do with a share of them.
  kOutputs,
  /// Each reads its share of the inputs, as a layer of kOutputs has left them, and the outputs are
  /// summed over the ranks.
  kInputs,
  /// Each computes its share of the outputs, and all get the whole: for a layer by itself.
  kGathered,
};

/// A row of the table.
struct LayerRule {
  /// Names of linears and convolutions in the module, as core/glob.h reads it: "blocks.*.qkv".
  std::string layers;
  LayerCut cut = LayerCut::kGathered;
  /// Equal parts that the outputs consist of, of which each rank gets its share: 3 for queries,
  /// keys and values in one.
  int64_t parts = 1;
};

/// A layer that ranks divide.
struct DividedLayer {
  std::string name;
  LayerCut cut = LayerCut::kGathered;
  comm::Group group;
  int64_t parts = 1;
};

/// Which part of the layer's weight, or bias (of one dim), of this whole shape is on this rank;
/// `count` 1: all of it. kConfig where ranks cannot divide it.
[[nodiscard]] nn::Box box_of(const DividedLayer& layer, const std::vector<int64_t>& whole);

/// Runs an operation of forward whose argument `place` is (a view of) the weight of `layer`.
/// kConfig for those that are neither a linear nor a convolution.
void compute_divided(const DividedLayer& layer, const c10::OperatorHandle& operation, size_t place,
                     std::vector<c10::IValue>* stack);

}  // namespace kinora::train
