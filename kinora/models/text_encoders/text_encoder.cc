#include "kinora/models/text_encoders/text_encoder.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <numeric>

#include "kinora/core/error.h"
#include "kinora/ops/parameter.h"

namespace kinora::models {

void TextTokens::add(std::span<const int32_t> text) {
  ids.insert(ids.end(), text.begin(), text.end());
  lengths.push_back(static_cast<int64_t>(text.size()));
}

at::Tensor padded_states(const TextStates& states, int64_t length) {
  const int64_t longest = states.lengths.empty() ? 0 : std::ranges::max(states.lengths);
  KINORA_CHECK(length == 0 || length >= longest, kShape, "[text] length must be ", longest,
               " or more, the longest text's, got ", length);
  const int64_t padded = length == 0 ? longest : length;
  const auto texts = static_cast<int64_t>(states.lengths.size());
  std::vector<int64_t> places;
  for (int64_t text = 0; text < texts; ++text) {
    for (int64_t i = 0; i < states.lengths[static_cast<size_t>(text)]; ++i) {
      places.push_back(text * padded + i);
    }
  }
  const at::Tensor rows = states.states.new_zeros({texts * padded, states.states.size(1)});
  return rows.index_copy(0, at::tensor(places, at::kLong).to(rows.device()), states.states)
      .unflatten(0, {texts, padded});
}

TextStates TextEncoder::encode(const TextTokens& tokens) {
  if (fill_.length == 0) {
    return encode(tokens, layer_);
  }
  TextTokens filled;
  std::vector<int64_t> rows;  // of the texts among all
  auto from = tokens.ids.begin();
  for (const int64_t length : tokens.lengths) {
    const auto first = std::ssize(filled.ids);
    const int64_t all = std::max(length, fill_.length);
    filled.ids.insert(filled.ids.end(), from, from + length);
    filled.ids.resize(static_cast<size_t>(first + all), fill_.id);
    filled.lengths.push_back(all);
    from += length;
    for (int64_t row = first; row < first + length; ++row) {
      rows.push_back(row);
    }
  }
  TextStates result = encode(filled, layer_);
  result.states =
      result.states.index_select(0, at::tensor(rows, at::kLong).to(result.states.device()));
  result.lengths = tokens.lengths;
  return result;
}

void TextEncoder::show(const at::Tensor& /*pixels*/) {
  throw_error(ErrorKind::kConfig, "[text] a ", kind(), " reads no picture with its texts");
}

std::vector<nn::BucketSpec> TextEncoder::buckets() {
  nn::BucketSpec embedders{.name = "text_embedder", .parameters = {}};
  nn::BucketSpec last{.name = "text_final", .parameters = {}};
  std::vector<nn::BucketSpec> buckets;
  for (int64_t i = 0; i < num_blocks(); ++i) {
    buckets.push_back(
        {.name = "text_block." + std::to_string(i), .parameters = {}, .is_block = true});
  }
  bool behind_blocks = false;
  for (const auto& [path, parameter] : named_parameters()) {
    const auto found =
        std::ranges::find_if(buckets, [&, &name = path](const nn::BucketSpec& bucket) {
          return name.starts_with(block_path(&bucket - buckets.data()));
        });
    behind_blocks = behind_blocks || found != buckets.end();
    (found != buckets.end() ? *found : behind_blocks ? last : embedders).parameters.push_back(path);
  }
  buckets.insert(buckets.begin(), std::move(embedders));
  buckets.push_back(std::move(last));
  return buckets;
}

void TextEncoder::check(const TextTokens& tokens, const TextLayer& layer) const {
  KINORA_CHECK(layer.before_last >= 0 && layer.before_last < num_blocks(), kShape,
               "[text] layer must be from 0 to ", num_blocks() - 1, " blocks before the last, got ",
               layer.before_last);
  KINORA_CHECK(!tokens.lengths.empty(), kShape, "[text] there must be at least one text, got none");
  KINORA_CHECK(tokens.attended.empty() || tokens.attended.size() == tokens.lengths.size(), kShape,
               "[text] attended must be one number a text, got ", tokens.attended.size(), " for ",
               tokens.lengths.size(), " texts");
  int64_t row = 0;
  for (size_t text = 0; text < tokens.lengths.size(); ++text) {
    const int64_t length = tokens.lengths[text];
    KINORA_CHECK(length >= 1 && length <= kMostTokens, kShape, "[text] text ", text,
                 " must have from 1 to ", kMostTokens, " tokens, got ", length,
                 ". Hint: a tokenizer truncates texts");
    const int64_t attended = tokens.attended.empty() ? length : tokens.attended[text];
    KINORA_CHECK(attended >= 1 && attended <= length, kShape, "[text] of the ", length,
                 " tokens of text ", text, " from 1 to all can be attended to, got ", attended);
    row += length;
    KINORA_CHECK(row <= static_cast<int64_t>(tokens.ids.size()), kShape, "[text] there must be ",
                 row, " ids or more, as the lengths say, got ", tokens.ids.size());
    for (int64_t i = row - length; i < row; ++i) {
      const int64_t id = tokens.ids[static_cast<size_t>(i)];
      KINORA_CHECK(id >= 0 && id < vocab_size(), kShape, "[text] ids must be from 0 to ",
                   vocab_size() - 1, ", got ", id, " in text ", text,
                   ". Hint: the tokenizer is another model's");
    }
  }
  KINORA_CHECK(row == static_cast<int64_t>(tokens.ids.size()), kShape, "[text] there must be ", row,
               " ids, as the lengths say, got ", tokens.ids.size());
}

at::Tensor TextEncoder::embed(const TextTokens& tokens, const nn::Parameter& table,
                              at::Device device) {
  const at::Tensor ids = at::tensor(tokens.ids, at::kLong).to(table.value.device());
  return at::embedding(ops::with_gradient(table.value, table.grad), ids).to(device, at::kFloat);
}

}  // namespace kinora::models
