#include "kinora/inference/weighted_texts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "kinora/core/error.h"
#include "kinora/core/log.h"

namespace kinora::inference {
namespace {

using Pieces = std::vector<WeightedTokens::Piece>;

constexpr double kLeastWeight = 1e-5;  // tan() is infinite at 0 (Compel)
constexpr double kMostRestored = 2.0;  // of the factor that restores the mean

/// How many of the special tokens stand in front of a text.
size_t num_in_front(const std::vector<int64_t>& special, const tokenizers::Tokenizer& tokenizer) {
  return !special.empty() && special.front() == tokenizer.bos_id() ? 1 : 0;
}

/// One a token: [tokens, 1].
at::Tensor weights_of(int64_t num_tokens, const Pieces& pieces) {
  at::Tensor weights = at::ones({num_tokens, 1});
  for (const WeightedTokens::Piece& piece : pieces) {
    weights.narrow(0, piece.begin, piece.end - piece.begin).fill_(piece.weight);
  }
  return weights;
}

at::Tensor states_of(models::TextEncoder& encoder, const std::vector<int64_t>& ids) {
  return encoder.encode({.ids = ids, .lengths = {std::ssize(ids)}}).states.to(at::kCPU, at::kFloat);
}

at::Tensor scaled(const at::Tensor& states, const at::Tensor& weights) {
  const at::Tensor weighted = states * weights;
  const double factor = states.mean().item<double>() / weighted.mean().item<double>();
  if (factor >= 1.0 / kMostRestored && factor <= kMostRestored) {
    return weighted * factor;
  }
  log_warn(
      "[sample] weights of a prompt: the mean of its states is not restored, which would take "
      "a factor of ",
      factor);
  return weighted;
}

/// Compel's blends of one text.
class Compel {
 public:
  Compel(models::TextEncoder& encoder, const WeightedStatesOptions& options)
      : encoder_(encoder), options_(options), empty_(states_of(encoder, padded(options.empty))) {}

  [[nodiscard]] at::Tensor blended(const WeightedTokens& text) const {
    const int64_t length = std::ssize(text.ids);
    at::Tensor sum = away(states_of(encoder_, text.ids), weights_of(length, text.pieces));
    double total = 1.0;
    for (size_t i = 0; i < text.pieces.size(); ++i) {
      if (text.pieces[i].weight < 1.0) {
        const double weight = std::max(text.pieces[i].weight, kLeastWeight);
        const double share = std::tan((1.0 - weight) * std::numbers::pi / 2.0);
        sum = sum + share * without(text, i).narrow(0, 0, length);
        total += share;
      }
    }
    return sum / total;
  }

 private:
  [[nodiscard]] std::vector<int64_t> padded(std::vector<int64_t> ids) const {
    ids.resize(static_cast<size_t>(options_.max_length), options_.pad_id);
    return ids;
  }

  /// The states, but where a token has a weight.
  [[nodiscard]] at::Tensor away(const at::Tensor& states, const at::Tensor& weights) const {
    const at::Tensor empty = empty_.narrow(0, 0, states.size(0));
    return at::where(weights == 1.0, states, empty + weights * (states - empty));
  }

  /// Of the text without piece `left_out`: [max_length, C].
  [[nodiscard]] at::Tensor without(const WeightedTokens& text, size_t left_out) const {
    const WeightedTokens::Piece& gap = text.pieces[left_out];
    std::vector<int64_t> ids = text.ids;
    ids.erase(ids.begin() + gap.begin, ids.begin() + gap.end);
    Pieces pieces;
    for (size_t i = 0; i < text.pieces.size(); ++i) {
      if (i != left_out) {
        const int64_t moved = i > left_out ? gap.end - gap.begin : 0;
        const WeightedTokens::Piece& piece = text.pieces[i];
        pieces.push_back({piece.begin - moved, piece.end - moved, piece.weight});
      }
    }
    return away(states_of(encoder_, padded(std::move(ids))),
                weights_of(options_.max_length, pieces));
  }

  models::TextEncoder& encoder_;
  const WeightedStatesOptions& options_;
  at::Tensor empty_;  // [max_length, C]
};

}  // namespace

prompts::WeightSyntax syntax_of(PromptWeights weights) {
  switch (weights) {
    case PromptWeights::kOff:
      return prompts::WeightSyntax::kNone;
    case PromptWeights::kA1111:
      return prompts::WeightSyntax::kBrackets;
    case PromptWeights::kCompel:
      return prompts::WeightSyntax::kSigns;
  }
  KINORA_UNREACHABLE("[sample] unknown weights");
}

bool WeightedTokens::is_weighted() const {
  return std::ranges::any_of(pieces, [](const Piece& piece) { return piece.weight != 1.0; });
}

WeightedTokens weighted_tokens(const tokenizers::Tokenizer& tokenizer,
                               const std::vector<prompts::WeightedText>& pieces,
                               int64_t max_length) {
  const std::vector<int64_t> special = tokenizer.encode("").ids;
  const size_t front = num_in_front(special, tokenizer);
  if (pieces.size() <= 1) {
    const prompts::WeightedText piece = pieces.empty() ? prompts::WeightedText{} : pieces.front();
    tokenizers::Tokens tokens = tokenizer.encode(piece.text, {.max_length = max_length});
    const auto first = static_cast<int64_t>(front);
    const int64_t count = std::ssize(tokens.ids) - std::ssize(special);
    return {.ids = std::move(tokens.ids),
            .pieces = {{.begin = first, .end = first + count, .weight = piece.weight}},
            .cut = std::move(tokens.cut),
            .num_cut = tokens.num_cut};
  }
  KINORA_CHECK(std::ssize(special) <= max_length, kConfig, "[sample] ", max_length,
               " tokens leave no room for the ", special.size(), " special ones");
  const auto room = static_cast<size_t>(max_length) - (special.size() - front);
  WeightedTokens result;
  std::vector<int64_t> ids(special.begin(), special.begin() + static_cast<int64_t>(front));
  for (const prompts::WeightedText& piece : pieces) {
    const std::vector<int64_t> own = tokenizer.encode(piece.text, {.special_tokens = false}).ids;
    const size_t begin = std::min(ids.size(), room);
    ids.insert(ids.end(), own.begin(), own.end());
    const size_t end = std::min(ids.size(), room);
    if (end > begin) {
      result.pieces.push_back({.begin = static_cast<int64_t>(begin),
                               .end = static_cast<int64_t>(end),
                               .weight = piece.weight});
    }
  }
  if (ids.size() > room) {
    const std::vector<int64_t> rest(ids.begin() + static_cast<int64_t>(room), ids.end());
    result.cut = tokenizer.decode(rest);
    result.num_cut = std::ssize(rest);
    ids.resize(room);
  }
  ids.insert(ids.end(), special.begin() + static_cast<int64_t>(front), special.end());
  result.ids = std::move(ids);
  return result;
}

at::Tensor weighted_states(models::TextEncoder& encoder, const WeightedTokens& text,
                           const WeightedStatesOptions& options) {
  if (options.weights == PromptWeights::kCompel) {
    return Compel(encoder, options).blended(text);
  }
  return scaled(states_of(encoder, text.ids), weights_of(std::ssize(text.ids), text.pieces));
}

}  // namespace kinora::inference
