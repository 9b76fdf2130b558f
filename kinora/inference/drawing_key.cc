#include "kinora/inference/drawing_key.h"

#include <span>
#include <string>
#include <utility>

#include "kinora/core/config.h"
#include "kinora/data/file_stamp.h"
#include "kinora/device/host_bytes.h"
#include "kinora/inference/prompts.h"
#include "kinora/io/file.h"
#include "kinora/optim/held_weights.h"
#include "kinora/optim/weight_exchange.h"

namespace kinora::inference {
namespace {

void add(const std::string& text, io::Checksum& sum) {
  sum.update(std::as_bytes(std::span(text)));
}

/// As they were loaded: averaged or raw, with adapters merged, in the type that they are computed
/// in.
std::string checksum_of_weights(const optim::Arena& arena) {
  io::Checksum sum;
  for (const optim::Bucket& bucket : arena.buckets()) {
    sum.update(device::bytes_of(bucket.compute.cpu().contiguous()));
  }
  for (const optim::FrozenBucket& bucket : arena.frozen()) {
    sum.update(device::bytes_of(bucket.compute.cpu().contiguous()));
  }
  if (const optim::HeldWeights* held = arena.held()) {
    for (const optim::HeldWeights::Weight& weight : held->weights()) {
      if (!weight.is_coded()) {
        sum.update(device::bytes_of(weight.plain.cpu().contiguous()));
        continue;
      }
      add(std::string(kernels::name_of(weight.codes.format)), sum);
      sum.update(device::bytes_of(weight.codes.codes.cpu()));
      sum.update(device::bytes_of(weight.codes.scales.cpu()));
    }
  }
  return sum.hex();
}

std::string checksum_of_asked(std::span<const Asked> asked) {
  io::Checksum sum;
  for (const Asked& each : asked) {
    add(std::to_string(each.label.value_or(-1)) + " " + each.caption + "\n", sum);
  }
  return sum.hex();
}

/// A file that samples are made from; empty: there is none.
std::string named(const std::string& path) {
  return path.empty() ? "" : path + " " + std::to_string(data::file_stamp(path));
}

}  // namespace

DrawingKey drawing_key(const TrainedModel& trained, const Drawing& drawing, const Request& request,
                       const DrawOptions& options) {
  DrawingKey key;
  ModelRecipe recipe = drawing.recipe();
  recipe.sample.sampling.guidance = request.guidance.value_or(recipe.sample.sampling.guidance);
  for (const auto& [name, value] : flatten_config(recipe)) {
    key[name] = value;
  }
  key.erase("sample.count");  // of grids that training shows
  const auto checksum = [](const optim::Arena& arena) {
    return "checksum " + checksum_of_weights(arena);
  };
  if (optim::WeightExchange* experts = trained.experts.get()) {
    experts->bring(optim::WeightExchange::Set::kSecond);
    key["low noise weights"] = checksum(*trained.arena);
    experts->bring(optim::WeightExchange::Set::kFirst);  // which begins to draw
  } else if (trained.low_noise != nullptr) {
    key["low noise weights"] = checksum(*trained.low_noise->arena);
  }
  key["weights"] = checksum(*trained.arena);
  key["seed"] = std::to_string(request.seed);
  key["text embeddings"] = named(request.text_embeddings);
  if (request.encoded) {
    key["text encoder"] = request.encoded->origin;
  }
  std::string given;
  for (const std::string& path : options.given) {
    given += (given.empty() ? "" : " ") + named(path);
  }
  key["given frames"] = given + " " + options.given_frames + " " +
                        std::to_string(static_cast<int>(options.frame_layout)) + " " +
                        std::to_string(options.given_edit);
  if (!options.last.empty() || !options.video.empty()) {
    key["given ends"] = named(options.video) + " to " + named(options.last) + ", " +
                        std::to_string(options.video_frames);
  }
  std::string placed;
  for (const PlacedFrames& each : options.at) {
    placed += std::to_string(each.frame) + " " + named(each.path) + " " +
              std::to_string(each.strength) + " ";
  }
  if (!placed.empty()) {
    key["given from"] = placed;
  }
  key["pieces"] = std::to_string(options.pieces) + ", overlap " + std::to_string(options.overlap);
  return key_of_first(std::move(key), drawing.asked(), std::ssize(drawing.asked()));
}

DrawingKey key_of_first(DrawingKey key, std::span<const Asked> asked, int64_t count) {
  key["count"] = std::to_string(count);
  key["classes or captions"] =
      "checksum " + checksum_of_asked(asked.first(static_cast<size_t>(count)));
  return key;
}

}  // namespace kinora::inference
