#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/train/boost/boostable.h"
#include "kinora/train/boost/divided_layer.h"

namespace torch::nn {
class Module;
}

namespace kinora::train {

/// Of fp32 gradients: large enough for the links between ranks, small enough to leave early.
inline constexpr int64_t kBucketBytes = int64_t{25} << 20;

struct TorchModuleOptions {
  int64_t bucket_bytes = kBucketBytes;
  /// Weights are told of before they are read (ToldReads::kWatched), so that they need not be there
  /// otherwise.
  bool watches_reads = false;
  /// Ranks that divide the layers that `rules` name.
  comm::Group tensor = {};
  std::vector<LayerRule> rules = {};
  /// Ranks that divide the children of the torch::nn::Sequential called `stages` (Chain) into
  /// `chunks` stages each.
  comm::Group pipeline = {};
  int64_t chunks = 1;
  std::string stages = {};
};

/// A torch::nn::Module as the Booster sees it. Names are those of the module; of parameters under
/// several names (tied weights) the first counts.
///
/// - Parameters that require gradients, in buckets of at most `bucket_bytes` of fp32 (or of one
///   layer) in order of registration, become views of the arena's compute copies: contiguous,
///   on its device, in its type. Their `grad` is gone after each backward: gradients are added up
///   in fp32, outside of the module.
/// - Parameters that do not require gradients stay what they are, in the compute type.
/// - Buffers go to the device and keep their type. Ranks start with those of rank 0, and then each
///   has its own.
/// - Inputs are the caller's: they must be of the device, and of the type that the module expects.
/// - A bucket is reduced when it and those behind it have all their gradients, the others at the
///   end of backward; so ranks reduce in the same order whatever their graphs are, and parameters
///   may be unused.
/// - Where ranks divide the module into stages, parameters and buffers in those of other ranks are
///   empty. What is outside of stages, or in several, is on all ranks, which sum up its gradients.
///
/// - With `watches_reads` all ranks run the same layers in the same order, and one operation reads
///   weights of two neighbouring buckets at most (kConfig).
///
/// The module may die before the result, and is the caller's again when the result is gone: with
/// the last weights, of divided layers and of stages this rank's part, and with `watches_reads`
/// with empty ones. kConfig if nothing requires gradients (on a rank), if it is boosted already,
/// and for rules and stages that do not fit.
[[nodiscard]] std::unique_ptr<Boostable> torch_module(torch::nn::Module& module,
                                                      const TorchModuleOptions& options = {});

/// Elements of what requires gradients, tied weights once.
[[nodiscard]] int64_t count_trained(const torch::nn::Module& module);

}  // namespace kinora::train
