#include "kinora/pipelines/text_batch_encoder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <vector>

namespace kinora::pipelines {

EncodedTexts TextBatchEncoder::encode(const at::Tensor& tokens, const at::Tensor& lengths) const {
  const at::NoGradGuard no_grad;
  const int64_t count = tokens.size(0);
  const int64_t room = tokens.size(1);
  const auto* row = tokens.const_data_ptr<int64_t>();
  const auto* length = lengths.const_data_ptr<int64_t>();
  std::vector<at::Tensor> states;
  std::vector<at::Tensor> pooled;
  for (int64_t first = 0; first < count; first += micro_batch_) {
    models::TextTokens texts;
    for (int64_t i = first; i < std::min(first + micro_batch_, count); ++i) {
      texts.ids.insert(texts.ids.end(), row + i * room, row + i * room + length[i]);
      texts.lengths.push_back(length[i]);
    }
    const models::TextStates out = encoder_.encode(texts);
    states.push_back(models::padded_states(out, encoder_.num_states(room)));
    if (out.pooled.defined()) {
      pooled.push_back(out.pooled);
    }
  }
  const auto joined = [](const std::vector<at::Tensor>& parts) {
    return parts.size() == 1 ? parts.front() : at::cat(parts);
  };
  return {.states = joined(states), .pooled = pooled.empty() ? at::Tensor() : joined(pooled)};
}

}  // namespace kinora::pipelines
