#include "kinora/models/text_encoders/encoder_with_clips.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>

#include <cstddef>
#include <utility>

#include "kinora/core/error.h"

namespace kinora::models {
namespace {

/// What Stable Diffusion 3 reads of its CLIPs.
constexpr TextLayer kClipStates = {.before_last = 1, .normed = false};

std::string below(size_t number, const std::string& path) {
  return EncoderWithClips::child_name(number) + "." + path;
}

}  // namespace

EncoderWithClips::EncoderWithClips(const std::vector<ClipTextConfig>& clips,
                                   std::unique_ptr<TextEncoder> main, size_t main_number,
                                   std::optional<CaptionFrame> frame)
    : main_(std::move(main)), frame_(std::move(frame)) {
  KINORA_CHECK(clips.size() == 1 || clips.size() == 2, kConfig, "[text] a ", main_->kind(),
               " must have one CLIP or two beside it, got ", clips.size());
  int64_t clip_width = 0;
  for (const ClipTextConfig& config : clips) {
    KINORA_CHECK(config.max_position_embeddings == clips.front().max_position_embeddings, kConfig,
                 "[text] both CLIPs must have as many positions, got ",
                 clips.front().max_position_embeddings, " and ", config.max_position_embeddings);
    clips_.push_back(std::make_unique<ClipTextEncoder>(config));
    clip_width += clips_.back()->width();
    all_.push_back(clips_.back().get());
  }
  KINORA_CHECK(!give_states() || clip_width <= width(), kConfig,
               "[text] states of the CLIPs must not be wider than ", main_->kind(), "'s ", width(),
               ", got ", clip_width);
  all_.insert(all_.begin() + static_cast<std::ptrdiff_t>(main_number), main_.get());
  int64_t first_block = 0;
  for (size_t number = 0; number < all_.size(); ++number) {
    add_child(child_name(number), *all_[number]);
    all_[number]->set_block_hook([this, first_block](int64_t block, bool begins) {
      tell_block(first_block + block, begins);
    });
    first_block += all_[number]->num_blocks();
  }
}

std::string EncoderWithClips::child_name(size_t number) {
  return "text_encoder" + (number == 0 ? "" : "_" + std::to_string(number + 1));
}

TokensBeside EncoderWithClips::beside() const {
  const int64_t each = *clips_.front()->piece();
  return {.tokens = each * std::ssize(clips_),
          .states = (give_states() ? each : 0) - left_out() + main_->beside().states};
}

void EncoderWithClips::leave_out(TextStates& states) const {
  if (left_out() == 0) {
    return;
  }
  std::vector<at::Tensor> rows;
  int64_t first = 0;
  for (int64_t& length : states.lengths) {
    rows.push_back(states.states.narrow(0, first + left_out(), length - left_out()));
    first += length;
    length -= left_out();
  }
  states.states = at::cat(rows);
}

TextStates EncoderWithClips::encode(const TextTokens& tokens, const TextLayer& layer) {
  const int64_t each = *clips_.front()->piece();
  const int64_t behind = beside().tokens;
  TextTokens of_main;
  std::vector<TextTokens> of_clips(clips_.size());
  auto text = tokens.ids.begin();
  for (size_t i = 0; i < tokens.lengths.size(); ++i) {
    const int64_t own = tokens.lengths[i] - behind;
    KINORA_CHECK(own > left_out(), kShape, "[text] text ", i, " must have more than the ", behind,
                 " tokens of CLIPs and ", left_out(), " that are left out, got ",
                 tokens.lengths[i]);
    of_main.ids.insert(of_main.ids.end(), text, text + own);
    of_main.lengths.push_back(own);
    text += own;
    for (TextTokens& of_clip : of_clips) {
      of_clip.ids.insert(of_clip.ids.end(), text, text + each);
      of_clip.lengths.push_back(each);
      text += each;
    }
  }
  TextStates result = main_->encode(of_main, layer);
  leave_out(result);
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

int64_t EncoderWithClips::num_blocks() const {
  int64_t blocks = 0;
  for (const TextEncoder* encoder : all_) {
    blocks += encoder->num_blocks();
  }
  return blocks;
}

int64_t EncoderWithClips::pooled_width() const {
  int64_t width = 0;
  for (const auto& clip : clips_) {
    width += clip->pooled_width();
  }
  return width;
}

std::string EncoderWithClips::block_path(int64_t block) const {
  size_t number = 0;
  while (number + 1 < all_.size() && block >= all_[number]->num_blocks()) {
    block -= all_[number++]->num_blocks();
  }
  return below(number, all_[number]->block_path(block));
}

std::vector<nn::NamedParameter> EncoderWithClips::vocabularies() {
  std::vector<nn::NamedParameter> all;
  for (size_t i = 0; i < all_.size(); ++i) {
    for (const nn::NamedParameter& named : all_[i]->vocabularies()) {
      all.push_back({below(i, named.path), named.parameter});
    }
  }
  return all;
}

std::vector<TextLinear*> EncoderWithClips::linears() {
  std::vector<TextLinear*> all;
  for (TextEncoder* encoder : all_) {
    const std::vector<TextLinear*> own = encoder->linears();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

}  // namespace kinora::models
