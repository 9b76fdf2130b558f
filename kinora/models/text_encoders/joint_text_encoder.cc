#include "kinora/models/text_encoders/joint_text_encoder.h"

#include <ATen/ops/cat.h>

#include <algorithm>

#include "kinora/core/error.h"

namespace kinora::models {
namespace {

std::string below(const char* child, const std::string& path) {
  return std::string(child) + "." + path;
}

}  // namespace

JointTextEncoder::JointTextEncoder(const ClipTextConfig& first, const ClipTextConfig& second,
                                   int64_t pad_id)
    : first_(first), second_(second), pad_id_(pad_id) {
  KINORA_CHECK(
      first.vocab_size == second.vocab_size &&
          first.max_position_embeddings == second.max_position_embeddings,
      kConfig, "[text] both text encoders must have one vocabulary and as many positions, ", "got ",
      first.vocab_size, " and ", second.vocab_size, " tokens, ", first.max_position_embeddings,
      " and ", second.max_position_embeddings, " positions");
  add_child(kChildren[0], first_);
  add_child(kChildren[1], second_);
  first_.set_block_hook([this](int64_t block, bool begins) { tell_block(block, begins); });
  second_.set_block_hook(
      [this](int64_t block, bool begins) { tell_block(first_.num_blocks() + block, begins); });
}

TextTokens JointTextEncoder::padded_for_second(const TextTokens& tokens) const {
  TextTokens result = tokens;
  auto begin = result.ids.begin();
  for (const int64_t length : tokens.lengths) {
    for (int64_t first = 0; first < length; first += *piece()) {
      const auto text = begin + first;
      const auto text_end = text + std::min(*piece(), length - first);
      const auto kept = second_.find_end(text, text_end) - text + 1;
      std::fill(text + std::min(kept, text_end - text), text_end, pad_id_);
    }
    begin += length;
  }
  return result;
}

TextStates JointTextEncoder::encode(const TextTokens& tokens, const TextLayer& layer) {
  check(tokens, layer);
  const TextStates first = first_.encode(tokens, layer);
  TextStates joint = second_.encode(padded_for_second(tokens), layer);
  joint.states = at::cat({first.states, joint.states}, 1);
  return joint;
}

std::string JointTextEncoder::block_path(int64_t block) const {
  const int64_t of_first = first_.num_blocks();
  return block < of_first ? below(kChildren[0], first_.block_path(block))
                          : below(kChildren[1], second_.block_path(block - of_first));
}

std::vector<nn::NamedParameter> JointTextEncoder::vocabularies() {
  const nn::NamedParameter first = first_.vocabularies().front();
  const nn::NamedParameter second = second_.vocabularies().front();
  return {{below(kChildren[0], first.path), first.parameter},
          {below(kChildren[1], second.path), second.parameter}};
}

std::vector<TextLinear*> JointTextEncoder::linears() {
  std::vector<TextLinear*> all = first_.linears();
  const std::vector<TextLinear*> second = second_.linears();
  all.insert(all.end(), second.begin(), second.end());
  return all;
}

}  // namespace kinora::models
