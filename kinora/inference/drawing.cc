#include "kinora/inference/drawing.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/seconds.h"

namespace kinora::inference {
namespace {

void check_number(const char* name, double value, double most) {
  KINORA_CHECK(value >= 0.0 && value <= most, kConfig, "[sample] ", name, " must be between 0 and ",
               most, ", got ", value);
}

void check(const SampleSize& size) {
  constexpr double kMostSize = 1e6;  // frames, or pixels a side
  check_number("frames", static_cast<double>(size.frames), kMostSize);
  check_number("height", static_cast<double>(size.height), kMostSize);
  check_number("width", static_cast<double>(size.width), kMostSize);
}

/// Numbers that nobody has looked at, where a program gives them. 0: as the recipe says.
void check(const DrawOptions& options, const models::ModelConfig& model) {
  check_number("steps", static_cast<double>(options.steps), pipelines::kMostSteps);
  check(options.size);
  check_number("fps", options.fps, 1000.0);
  const bool of_clips =
      options.fps > 0.0 || options.pieces > 1 || !options.given.empty() || !options.at.empty();
  KINORA_CHECK(model.is_video() || !of_clips, kConfig,
               "[sample] a rate of frames, pieces and given frames are for models of clips, and "
               "this one draws images");
}

/// `size` where it says one, else `otherwise`.
SampleSize chosen(const SampleSize& size, const SampleSize& otherwise) {
  const auto choose = [](int64_t own, int64_t other) { return own == 0 ? other : own; };
  return {.frames = choose(size.frames, otherwise.frames),
          .height = choose(size.height, otherwise.height),
          .width = choose(size.width, otherwise.width)};
}

}  // namespace

Drawing::Drawing(TrainedModel& trained, const std::vector<Request>& requests,
                 const DrawOptions& options)
    : options_(options) {
  check(options, trained.recipe.model);
  KINORA_CHECK(!requests.empty(), kConfig, "[sample] there must be at least one request");
  for (const Request& request : requests) {
    check(request.size);
    DrawingGroup group(trained, chosen(request.size, options.size), options_);
    // Sizes in words may differ where those of the model do not: 0 is its own.
    auto found = std::find_if(groups_.begin(), groups_.end(), [&](const DrawingGroup& other) {
      return other.recipe().model.sample_shape() == group.recipe().model.sample_shape();
    });
    if (found == groups_.end()) {
      groups_.push_back(std::move(group));
      found = std::prev(groups_.end());
    }
    const std::vector<Asked> asked = found->add(request, std::ssize(asked_));
    asked_.insert(asked_.end(), asked.begin(), asked.end());
    counts_.push_back(std::ssize(asked));
  }
}

void Drawing::set_start(const DrawStart& start) {
  KINORA_CHECK(
      groups_.size() == 1 && options_.pieces == 1, kConfig,
      "[sample] samples that begin with given noise or data must be of one size, and clips "
      "of one piece. Hint: no --loop");
  groups_.front().set_start(start);
}

pipelines::BatchCost Drawing::batch_cost() {
  return groups_.front().batch_cost();
}

Drawing::CacheTrial Drawing::try_cache() {
  DrawingGroup& group = groups_.front();
  const auto timed = [&](const diffusion::StepCacheConfig& cache, at::Tensor& drawn) {
    const auto begin = std::chrono::steady_clock::now();
    drawn = group.draw_first_batch(cache);  // on the CPU
    return seconds_since(begin);
  };
  CacheTrial trial;
  const diffusion::StepCacheConfig& cache = recipe().sample.sampling.cache;
  (void)timed({}, trial.without);  // the first run of a shape takes longer
  trial.price.seconds_without = timed({}, trial.without);
  trial.price.seconds = timed(cache, trial.with);
  trial.price.samples = trial.with.size(0);
  trial.price.relative_error = pipelines::relative_error(trial.with, trial.without);
  return trial;
}

bool Drawing::draw_batches(const comm::Group& world, const pipelines::DrawEvents& events,
                           const std::vector<bool>& there) {
  int64_t fewest = std::ssize(asked_);
  bool guided = false;
  for (const DrawingGroup& group : groups_) {
    fewest = std::min(fewest, group.count());
    guided = guided || group.is_guided();
  }
  const pipelines::SamplingShares shares =
      pipelines::share_ranks(options_.ranks, world.size(), fewest, guided);
  const parallel::Mesh mesh(world, shares.mesh());
  if (world.rank() == 0 && world.size() > 1) {
    log_info("[sample] ", shares.reason);
  }
  if (world.rank() == 0 && groups_.front().goes_on() && !recipe().frame_masks.any()) {
    log_warn(
        "[sample] this model was never given frames while it trained (frame_masks), so it may not "
        "go on from them");
  }
  int64_t drawn = 0;
  for (DrawingGroup& group : groups_) {
    pipelines::DrawEvents heard = events;
    if (events.progress) {
      heard.progress = [&](pipelines::DrawProgress progress) {
        progress.part =
            (static_cast<double>(drawn) + progress.part * static_cast<double>(group.count())) /
            static_cast<double>(asked_.size());
        events.progress(progress);
      };
    }
    if (!group.draw_batches(mesh, heard, there)) {
      return false;
    }
    drawn += group.count();
  }
  return true;
}

std::vector<at::Tensor> Drawing::draw_each() {
  std::vector<at::Tensor> samples(asked_.size());
  (void)draw_batches({}, {.done = [&](int64_t first, const at::Tensor& drawn) {
                       for (int64_t i = 0; i < drawn.size(0); ++i) {
                         samples[static_cast<size_t>(first + i)] = drawn[i];
                       }
                     }});
  std::vector<at::Tensor> requests;
  auto begin = samples.begin();
  for (const int64_t count : counts_) {
    requests.push_back(at::stack(std::vector<at::Tensor>(begin, begin + count)));
    begin += count;
  }
  return requests;
}

at::Tensor Drawing::draw() {
  KINORA_CHECK(groups_.size() == 1, kConfig,
               "[sample] requests must be of one size to be drawn "
               "into one tensor, got ",
               groups_.size(), " sizes. Hint: draw_each()");
  return at::cat(draw_each());
}

}  // namespace kinora::inference
