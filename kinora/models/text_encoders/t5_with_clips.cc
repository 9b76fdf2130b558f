#include "kinora/models/text_encoders/t5_with_clips.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>

#include <algorithm>

#include "kinora/core/error.h"

namespace kinora::models {
namespace {

/// What Stable Diffusion 3 reads of its CLIPs.
constexpr TextLayer kClipStates = {.before_last = 1, .normed = false};

std::string below(size_t number, const std::string& path) {
  return T5WithClips::child_name(number) + "." + path;
}

}  // namespace

T5WithClips::T5WithClips(const std::vector<ClipTextConfig>& clips, const T5Config& t5) : t5_(t5) {
  KINORA_CHECK(clips.size() == 1 || clips.size() == 2, kConfig,
               "[text] a T5 must have one CLIP or two beside it, got ", clips.size());
  int64_t first_block = 0;
  int64_t clip_width = 0;
  const auto add = [&](TextEncoder& encoder, size_t number) {
    add_child(child_name(number), encoder);
    encoder.set_block_hook([this, first_block](int64_t block, bool begins) {
      tell_block(first_block + block, begins);
    });
    first_block += encoder.num_blocks();
  };
  for (const ClipTextConfig& config : clips) {
    KINORA_CHECK(config.max_position_embeddings == clips.front().max_position_embeddings, kConfig,
                 "[text] both CLIPs must have as many positions, got ",
                 clips.front().max_position_embeddings, " and ", config.max_position_embeddings);
    clips_.push_back(std::make_unique<ClipTextEncoder>(config));
    clip_width += clips_.back()->width();
    add(*clips_.back(), clips_.size() - 1);
  }
  add(t5_, clips_.size());
  KINORA_CHECK(!give_states() || clip_width <= width(), kConfig,
               "[text] states of the CLIPs must not be wider than T5's ", width(), ", got ",
               clip_width);
}

std::string T5WithClips::child_name(size_t number) {
  return "text_encoder" + (number == 0 ? "" : "_" + std::to_string(number + 1));
}

TextEncoder& T5WithClips::encoder(size_t number) const {
  return number < clips_.size() ? static_cast<TextEncoder&>(*clips_[number]) : t5_;
}

TokensBeside T5WithClips::beside() const {
  const int64_t each = *clips_.front()->piece();
  return {.tokens = each * std::ssize(clips_), .states = give_states() ? each : 0};
}

TextStates T5WithClips::encode(const TextTokens& tokens, const TextLayer& layer) {
  const int64_t each = *clips_.front()->piece();
  const int64_t behind = beside().tokens;
  TextTokens of_t5;
  std::vector<TextTokens> of_clips(clips_.size());
  auto text = tokens.ids.begin();
  for (size_t i = 0; i < tokens.lengths.size(); ++i) {
    const int64_t own = tokens.lengths[i] - behind;
    KINORA_CHECK(own > 0, kShape, "[text] text ", i, " must have more than the ", behind,
                 " tokens of CLIPs, got ", tokens.lengths[i]);
    of_t5.ids.insert(of_t5.ids.end(), text, text + own);
    of_t5.lengths.push_back(own);
    text += own;
    for (TextTokens& of_clip : of_clips) {
      of_clip.ids.insert(of_clip.ids.end(), text, text + each);
      of_clip.lengths.push_back(each);
      text += each;
    }
  }
  TextStates result = t5_.encode(of_t5, layer);
  std::vector<at::Tensor> pooled;
  std::vector<at::Tensor> states;
  for (size_t i = 0; i < clips_.size(); ++i) {
    TextStates made = give_states() ? clips_[i]->encode(of_clips[i], kClipStates)
                                    : clips_[i]->encode(of_clips[i]);
    pooled.push_back(std::move(made.pooled));
    states.push_back(std::move(made.states));
  }
  result.pooled = at::cat(pooled, 1);
  if (!give_states()) {
    return result;
  }
  const at::Tensor joint = at::cat(states, 1);
  const at::Tensor before = at::constant_pad_nd(joint, {0, width() - joint.size(1)});
  std::vector<at::Tensor> rows;
  int64_t first = 0;
  for (size_t i = 0; i < result.lengths.size(); ++i) {
    rows.push_back(before.narrow(0, static_cast<int64_t>(i) * each, each));
    rows.push_back(result.states.narrow(0, first, result.lengths[i]));
    first += result.lengths[i];
    result.lengths[i] += each;
  }
  result.states = at::cat(rows);
  return result;
}

int64_t T5WithClips::num_blocks() const {
  int64_t blocks = 0;
  for (size_t i = 0; i < count(); ++i) {
    blocks += encoder(i).num_blocks();
  }
  return blocks;
}

int64_t T5WithClips::pooled_width() const {
  int64_t width = 0;
  for (const auto& clip : clips_) {
    width += clip->pooled_width();
  }
  return width;
}

std::string T5WithClips::block_path(int64_t block) const {
  size_t number = 0;
  while (number + 1 < count() && block >= encoder(number).num_blocks()) {
    block -= encoder(number++).num_blocks();
  }
  return below(number, encoder(number).block_path(block));
}

std::vector<nn::NamedParameter> T5WithClips::vocabularies() {
  std::vector<nn::NamedParameter> all;
  for (size_t i = 0; i < count(); ++i) {
    for (const nn::NamedParameter& named : encoder(i).vocabularies()) {
      all.push_back({below(i, named.path), named.parameter});
    }
  }
  return all;
}

std::vector<TextLinear*> T5WithClips::linears() {
  std::vector<TextLinear*> all;
  for (size_t i = 0; i < count(); ++i) {
    const std::vector<TextLinear*> own = encoder(i).linears();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

}  // namespace kinora::models
