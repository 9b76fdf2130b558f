#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kinora/models/model_config.h"
#include "kinora/models/unets/unet_layers.h"
#include "kinora/ops/bucket_hook.h"

/// How the blocks of U-Nets and ControlNets follow each other. Shapes: as in unet_layers.h.
namespace kinora::models {

/// The blocks of a pass, in the order of their buckets.
class UnetBlocks {
 public:
  /// hook: told of each block's bucket, the first of which is `first_bucket`. recompute: how many
  /// blocks keep their inputs only. overwrites: their gradients hold nothing yet
  /// (ops::OverwriteGradients).
  UnetBlocks(ops::BucketHook hook, int64_t first_bucket, int64_t recompute, bool overwrites)
      : hook_(std::move(hook)),
        first_bucket_(first_bucket),
        recompute_(recompute),
        overwrites_(overwrites) {}

  using Body = std::function<std::vector<at::Tensor>(const at::Tensor& x, const UnetReads& reads)>;
  /// body(x, reads) of the next block, where x are `streams`, one behind the other.
  [[nodiscard]] std::vector<at::Tensor> run(std::vector<at::Tensor> streams, const UnetReads& reads,
                                            const Body& body);

 private:
  ops::BucketHook hook_;
  int64_t first_bucket_;
  int64_t recompute_;
  bool overwrites_;
  int64_t number_ = 0;
};

/// The levels on the way down, from the finest.
[[nodiscard]] std::vector<std::unique_ptr<UnetLevel>> make_way_down(const ModelConfig& config);

/// What they leave for the way up: `h` itself, then of each unit and each change of size.
[[nodiscard]] std::vector<at::Tensor> go_down(const std::vector<std::unique_ptr<UnetLevel>>& levels,
                                              const at::Tensor& h, const UnetReads& reads,
                                              UnetBlocks& blocks);

/// Widths of what go_down() returns.
[[nodiscard]] std::vector<int64_t> widths_left(const UnetConfig& config);

/// Names of a level's blocks: "PATH.UNIT", and what its parameters begin with.
struct UnetBlockNames {
  std::string name;
  std::vector<std::string> prefixes;
};
/// Of one level. resample: what changes its size, ".downsamplers." or ".upsamplers.".
[[nodiscard]] std::vector<UnetBlockNames> block_names(const std::string& path,
                                                      const UnetLevel& level, const char* resample);

/// Widths of what a level on the way down is given, unit by unit.
[[nodiscard]] std::vector<int64_t> inputs_down(const UnetConfig& config, int64_t level);

}  // namespace kinora::models
