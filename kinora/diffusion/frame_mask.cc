#include "kinora/diffusion/frame_mask.h"

#include <ATen/ops/ones.h>

#include <algorithm>
#include <array>

#include "kinora/core/config.h"
#include "kinora/core/philox.h"

namespace kinora::diffusion {
namespace {

/// Draws by number.
class Draws {
 public:
  explicit Draws(const RandomStream& stream) : stream_(stream) {}
  double uniform() { return static_cast<double>(random_uniform(stream_, next_++)); }
  /// In 0..count - 1.
  int64_t below(int64_t count) {
    const auto value = static_cast<int64_t>(uniform() * static_cast<double>(count));
    return std::min(value, count - 1);
  }

 private:
  RandomStream stream_;
  uint64_t next_ = 0;
};

void give(bool* noised, int64_t first, int64_t count) {
  std::fill_n(noised + first, count, false);
}

struct Mode {
  double FrameMaskRatios::*ratio;
  void (*mask)(Draws& draws, bool* noised, int64_t frames);
};

void mask_random(Draws& draws, bool* noised, int64_t frames) {
  const double chance = 0.1 + 0.8 * draws.uniform();
  for (int64_t i = 0; i < frames; ++i) {
    noised[i] = draws.uniform() >= chance;
  }
  if (std::none_of(noised, noised + frames, [](bool value) { return value; })) {
    noised[draws.below(frames)] = true;
  }
}

void mask_interpolate(Draws& draws, bool* noised, int64_t frames) {
  for (int64_t i = draws.below(2); i < frames; i += 2) {
    noised[i] = false;
  }
}

int64_t quarter(Draws& draws, int64_t frames) {
  return 1 + draws.below(std::max<int64_t>(frames / 4, 1));
}

void mask_inside(Draws& draws, bool* noised, int64_t frames, int64_t count) {
  give(noised, draws.below(frames - count + 1), count);
}

/// At both ends, with a frame between them.
void mask_ends(bool* noised, int64_t frames, int64_t count) {
  const int64_t own = std::min(count, (frames - 1) / 2);
  give(noised, 0, own);
  give(noised, frames - own, own);
}

constexpr std::array<Mode, 10> kModes = {{
    {&FrameMaskRatios::random, mask_random},
    {&FrameMaskRatios::interpolate, mask_interpolate},
    {&FrameMaskRatios::quarter_random,
     [](Draws& draws, bool* noised, int64_t frames) {
       const int64_t count = quarter(draws, frames);
       mask_inside(draws, noised, frames, count);
     }},
    {&FrameMaskRatios::quarter_head,
     [](Draws& draws, bool* noised, int64_t frames) { give(noised, 0, quarter(draws, frames)); }},
    {&FrameMaskRatios::quarter_tail,
     [](Draws& draws, bool* noised, int64_t frames) {
       const int64_t count = quarter(draws, frames);
       give(noised, frames - count, count);
     }},
    {&FrameMaskRatios::quarter_head_tail,
     [](Draws& draws, bool* noised, int64_t frames) {
       mask_ends(noised, frames, quarter(draws, frames));
     }},
    {&FrameMaskRatios::image_random,
     [](Draws& draws, bool* noised, int64_t frames) { mask_inside(draws, noised, frames, 1); }},
    {&FrameMaskRatios::image_head,
     [](Draws& /*draws*/, bool* noised, int64_t /*frames*/) { give(noised, 0, 1); }},
    {&FrameMaskRatios::image_tail,
     [](Draws& /*draws*/, bool* noised, int64_t frames) { give(noised, frames - 1, 1); }},
    {&FrameMaskRatios::image_head_tail,
     [](Draws& /*draws*/, bool* noised, int64_t frames) { mask_ends(noised, frames, 1); }},
}};

/// Frames that a condition with a weight gives at each end.
struct Condition {
  const char* name;
  double GivenWeights::*weight;
  const char* gives;
  int64_t head = 0;  // before they were encoded
  int64_t tail = 0;
};

constexpr int64_t kVideo = 33;
constexpr int64_t kLongVideo = 65;

constexpr std::array<Condition, 8> kWeighted = {{
    {"t2v", &GivenWeights::t2v, "nothing given"},
    {"i2v_head", &GivenWeights::i2v_head, "the first frame given", 1, 0},
    {"i2v_loop", &GivenWeights::i2v_loop, "the first and the last frame given", 1, 1},
    {"i2v_tail", &GivenWeights::i2v_tail, "the last frame given", 0, 1},
    {"v2v_head", &GivenWeights::v2v_head, "the first 33 frames given", kVideo, 0},
    {"v2v_tail", &GivenWeights::v2v_tail, "the last 33 frames given", 0, kVideo},
    {"v2v_head_easy", &GivenWeights::v2v_head_easy, "the first 65 frames given", kLongVideo, 0},
    {"v2v_tail_easy", &GivenWeights::v2v_tail_easy, "the last 65 frames given", 0, kLongVideo},
}};

/// What so many frames became: the first one alone, then each `compression`.
int64_t encoded(int64_t frames, int64_t compression) {
  return frames == 0 ? 0 : 1 + (frames - 1) / compression;
}

void mask_by_weights(const GivenWeights& weights, Draws& draws, bool* noised, int64_t frames,
                     int64_t compression) {
  const auto weight_of = [&](const Condition& condition) {
    const int64_t given =
        encoded(condition.head, compression) + encoded(condition.tail, compression);
    return given < frames ? weights.*condition.weight : 0.0;
  };
  double place = 0.0;
  for (const Condition& condition : kWeighted) {
    place += weight_of(condition);
  }
  place *= draws.uniform();
  for (const Condition& condition : kWeighted) {
    const double weight = weight_of(condition);
    place -= weight;
    if (place < 0.0 && weight > 0.0) {
      const int64_t tail = encoded(condition.tail, compression);
      give(noised, 0, encoded(condition.head, compression));
      give(noised, frames - tail, tail);
      return;
    }
  }
}

}  // namespace

double GivenWeights::sum() const {
  double total = 0.0;
  for (const Condition& condition : kWeighted) {
    total += this->*condition.weight;
  }
  return total;
}

bool FrameMaskRatios::any() const {
  return sum() > 0.0 || weights.sum() > weights.t2v;
}

double FrameMaskRatios::sum() const {
  double total = 0.0;
  for (const Mode& mode : kModes) {
    total += this->*mode.ratio;
  }
  return total;
}

void describe(Fields& fields, FrameMaskRatios& ratios) {
  const auto add = [&](const char* key, double& value, const char* what) -> auto& {
    return fields.add(key, value, std::string("Share of clips with ") + what + ".", between(0, 1));
  };
  add("random", ratios.random, "each frame given by itself, with a chance of 0.1 to 0.9")
      .check("have a sum of at most 1 with the other modes",
             [&ratios] { return ratios.sum() <= 1.0 + 1e-9; });
  add("interpolate", ratios.interpolate, "every other frame given");
  add("quarter_random", ratios.quarter_random, "up to a quarter given, somewhere");
  add("quarter_head", ratios.quarter_head, "up to a quarter given, at the start");
  add("quarter_tail", ratios.quarter_tail, "up to a quarter given, at the end");
  add("quarter_head_tail", ratios.quarter_head_tail, "up to a quarter given at each end");
  add("image_random", ratios.image_random, "one frame given, somewhere");
  add("image_head", ratios.image_head, "the first frame given");
  add("image_tail", ratios.image_tail, "the last frame given");
  add("image_head_tail", ratios.image_head_tail, "the first and the last frame given");
  const auto scope = fields.scope("weights");
  for (const Condition& condition : kWeighted) {
    fields
        .add(condition.name, ratios.weights.*condition.weight,
             std::string("Weight of clips with ") + condition.gives +
                 ", among those of frame_masks.weights that a clip is long enough for (Open-Sora "
                 "2).",
             between(0, 1e6))
        .check("be 0 beside the shares of frame_masks, which have no weights",
               [&ratios] { return ratios.sum() == 0.0 || ratios.weights.sum() == 0.0; });
  }
}

at::Tensor draw_frame_masks(const FrameMaskRatios& ratios, int64_t num_frames,
                            const FrameMaskKey& key, int64_t compression) {
  const int64_t batch = key.sample_index.size(0);
  at::Tensor masks = at::ones({batch, num_frames}, at::kBool);
  if (num_frames == 1) {
    return masks;
  }
  const at::Tensor indices = key.sample_index.to(at::kCPU, at::kLong).contiguous();
  for (int64_t b = 0; b < batch; ++b) {
    Draws draws({.seed = key.seed,
                 .sample = static_cast<uint64_t>(indices.const_data_ptr<int64_t>()[b]),
                 .step = static_cast<uint32_t>(key.step),
                 .purpose = RandomPurpose::kFrameMask});
    bool* const noised = masks.mutable_data_ptr<bool>() + b * num_frames;
    if (ratios.weights.sum() > 0.0) {
      mask_by_weights(ratios.weights, draws, noised, num_frames, compression);
      continue;
    }
    double place = draws.uniform();
    for (const Mode& mode : kModes) {
      place -= ratios.*mode.ratio;
      if (place < 0.0) {
        mode.mask(draws, noised, num_frames);
        break;
      }
    }
  }
  return masks;
}

}  // namespace kinora::diffusion
