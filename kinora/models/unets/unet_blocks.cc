#include "kinora/models/unets/unet_blocks.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <string>

#include "kinora/models/run_block.h"
#include "kinora/ops/parameter.h"

namespace kinora::models {

std::vector<at::Tensor> UnetBlocks::run(std::vector<at::Tensor> streams, const UnetReads& reads,
                                        const Body& body) {
  const size_t num_streams = streams.size();
  const auto whole = [body, reads, num_streams](const std::vector<at::Tensor>& in) {
    UnetReads here = reads;
    if (in.size() > num_streams) {
      here.time = in[num_streams];
      here.text = in.size() > num_streams + 1 ? in[num_streams + 1] : at::Tensor();
    }
    return body(num_streams == 1 ? in[0] : at::cat({in[0], in[1]}, 1), here);
  };
  const int64_t number = number_++;
  // What a block adds to the gradient of each input adds up by itself, as where it is computed
  // again: others read these, too.
  for (at::Tensor& stream : streams) {
    stream = stream.view_as(stream);
  }
  std::vector<at::Tensor> shared;
  if (reads.time.defined()) {
    shared = {reads.time.view_as(reads.time)};
    if (reads.text.defined()) {
      shared.push_back(reads.text.view_as(reads.text));
    }
  }
  const ops::OverwriteGradients of_blocks(overwrites_);
  return run_block(whole, std::move(streams), shared, number < recompute_, hook_,
                   first_bucket_ + number);
}

std::vector<int64_t> inputs_down(const UnetConfig& config, int64_t level) {
  std::vector<int64_t> inputs(static_cast<size_t>(config.resnets), config.channels[level]);
  inputs.front() = config.channels[std::max<int64_t>(level - 1, 0)];
  return inputs;
}

std::vector<std::unique_ptr<UnetLevel>> make_way_down(const ModelConfig& config) {
  const UnetConfig& own = config.unet;
  std::vector<std::unique_ptr<UnetLevel>> levels;
  for (int64_t level = 0; level < own.levels(); ++level) {
    levels.push_back(std::make_unique<UnetLevel>(
        inputs_down(own, level), own.channels[level], own, config.text_channels, own.heads[level],
        own.depths[level],
        level + 1 == own.levels() ? UnetLevel::Next::kNone : UnetLevel::Next::kHalf));
  }
  return levels;
}

std::vector<at::Tensor> go_down(const std::vector<std::unique_ptr<UnetLevel>>& levels,
                                const at::Tensor& h, const UnetReads& reads, UnetBlocks& blocks) {
  std::vector<at::Tensor> left = {h};
  for (const auto& level : levels) {
    for (size_t unit = 0; unit < level->num_units(); ++unit) {
      const bool resamples = unit + 1 == level->num_units() && level->changes_size();
      for (at::Tensor& result :
           blocks.run({left.back()}, reads,
                      [&level = *level, unit, resamples](const at::Tensor&x, const UnetReads&here) {
                        std::vector<at::Tensor> results = {level.forward(unit, x, here)};
                        if (resamples) {
                          results.push_back(level.halved(results.front(), here));
                        }
                        return results;
                      })) {
        left.push_back(std::move(result));
      }
    }
  }
  return left;
}

std::vector<int64_t> widths_left(const UnetConfig& config) {
  std::vector<int64_t> widths = {config.channels.front()};
  for (int64_t level = 0; level < config.levels(); ++level) {
    const int64_t changes = level + 1 < config.levels() ? 1 : 0;
    widths.insert(widths.end(), static_cast<size_t>(config.resnets + changes),
                  config.channels[level]);
  }
  return widths;
}

std::vector<UnetBlockNames> block_names(const std::string& path, const UnetLevel& level,
                                        const char* resample) {
  std::vector<UnetBlockNames> names;
  for (size_t unit = 0; unit < level.num_units(); ++unit) {
    const std::string number = "." + std::to_string(unit);
    names.push_back(
        {path + number, {path + ".resnets" + number + ".", path + ".attentions" + number + "."}});
  }
  names.back().prefixes.push_back(path + resample);
  return names;
}

}  // namespace kinora::models
