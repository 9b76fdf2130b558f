#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kinora/models/text_encoders/ragged_attention.h"
#include "kinora/models/text_encoders/text_linear.h"
#include "kinora/nn/module.h"
#include "kinora/nn/plan.h"

namespace kinora::models {

/// A longer text is refused: its scores would take memory by the square of its length.
inline constexpr int64_t kMostTokens = 4096;

/// Texts as a tokenizer numbers them, one after the other. What is here is computed and attended
/// to, so padding belongs here only where a pipeline attends to it, too: Stable Diffusion's 77
/// tokens of CLIP, Flux' 512 of T5.
struct TextTokens {
  std::vector<int64_t> ids;
  std::vector<int64_t> lengths;  ///< of each text, from 1 to kMostTokens
  /// Of each text, how many of its first tokens are attended to, from 1 to its length: those behind
  /// have states, too, which no other token reads (Latte's negative caption). Empty: all of them.
  std::vector<int64_t> attended = {};

  void add(std::span<const int32_t> text);
};

/// Which of the encoder's states are wanted.
struct TextLayer {
  int64_t before_last = 0;  ///< 0: behind the last block; 1: behind the one before it
  bool normed = true;       ///< by the final norm
};

/// Padding behind each text, up to `length` tokens, that is attended to as the rest and has no
/// states (LTX-Video).
struct TextFill {
  int64_t length = 0;  ///< 0: there is none
  int64_t id = 0;      ///< of the padding
};

struct TextStates {
  at::Tensor states;             ///< fp32 [rows, width], a row a token
  std::vector<int64_t> lengths;  ///< rows of each text
  at::Tensor pooled;  ///< fp32 [texts, P]: one vector a text; undefined where there is none
};

/// The states as [texts, length, width], zeros behind each text's end. length: that of the longest,
/// or longer; 0: that of the longest. kShape for a shorter one.
[[nodiscard]] at::Tensor padded_states(const TextStates& states, int64_t length = 0);

/// What other vocabularies add to a text.
struct TokensBeside {
  int64_t tokens = 0;  ///< behind its own
  int64_t states = 0;  ///< before those of its own tokens, less than 0: so many of these have none
};

/// Words around a caption, for an encoder that is a language model.
struct CaptionFrame {
  std::string before;
  std::string behind;
  int64_t tokens = 0;  ///< so many of the first have no state: those of `before`
};

/// Says that the parameters of a block are read from now on (`begins`), or no longer.
using TextBlockHook = std::function<void(int64_t block, bool begins)>;

/// Turns tokens into states. Linears run over all rows, whatever text they belong to; attention
/// within each text. The residual stream and the norms are fp32, linears and attention in the type
/// of the weights. Parameters are named as transformers does.
class TextEncoder : public nn::Module {
 public:
  virtual ~TextEncoder() = default;

  /// kShape for an id that the vocabulary lacks, for texts that are empty or too long, and for a
  /// layer that is not there. Differentiable in the parameters.
  [[nodiscard]] virtual TextStates encode(const TextTokens& tokens, const TextLayer& layer) = 0;
  /// The same of default_layer(), with the fill of set_fill().
  [[nodiscard]] TextStates encode(const TextTokens& tokens);
  /// The states that whoever it was opened for reads; at first those behind the last block, normed.
  [[nodiscard]] const TextLayer& default_layer() const { return layer_; }
  void set_default_layer(const TextLayer& layer) { layer_ = layer; }
  void set_fill(const TextFill& fill) { fill_ = fill; }
  /// Pixels a side of a picture that it reads with its texts; 0: it reads none.
  [[nodiscard]] virtual int64_t picture_side() const { return 0; }
  /// The picture that the next texts are read with: fp32 [3, S, S], normalised as CLIP wants it.
  /// kConfig where it reads none; kShape.
  virtual void show(const at::Tensor& pixels);

  /// What it is called: "T5".
  [[nodiscard]] virtual std::string kind() const = 0;
  [[nodiscard]] virtual int64_t num_blocks() const = 0;
  /// Channels of a state.
  [[nodiscard]] virtual int64_t width() const = 0;
  /// Of `pooled`; 0: there is none.
  [[nodiscard]] virtual int64_t pooled_width() const = 0;
  [[nodiscard]] virtual int64_t vocab_size() const = 0;
  /// Tokens that it takes at once; longer texts come in pieces of so many (tokenizers/pieces.h).
  /// Nothing: texts of any length.
  [[nodiscard]] virtual std::optional<int64_t> piece() const { return std::nullopt; }
  /// Of an encoder of several vocabularies: what each text has beside the tokens of the first.
  [[nodiscard]] virtual TokensBeside beside() const { return {}; }
  /// What its captions stand in; null: nothing.
  [[nodiscard]] virtual const CaptionFrame* frame() const { return nullptr; }
  /// States of a text of so many tokens; of 0 tokens, by how many it has more states than tokens.
  [[nodiscard]] int64_t num_states(int64_t tokens) const {
    return tokens - beside().tokens + beside().states;
  }
  /// What the paths of a block's parameters begin with: "encoder.block.3.".
  [[nodiscard]] virtual std::string block_path(int64_t block) const = 0;
  /// The tables of its vocabularies, which may lie on the CPU while the rest is on a GPU, in any
  /// floating type.
  [[nodiscard]] virtual std::vector<nn::NamedParameter> vocabularies() = 0;
  /// Those of the blocks, whose weights may lie in 8 bits.
  [[nodiscard]] virtual std::vector<TextLinear*> linears() = 0;

  /// One of the embeddings, one a block, one of what is behind them.
  [[nodiscard]] std::vector<nn::BucketSpec> buckets();

  void set_block_hook(TextBlockHook hook) { hook_ = std::move(hook); }

 protected:
  /// Calls `compute` between both calls of the hook, and returns its result.
  template <typename Compute>
  [[nodiscard]] at::Tensor with_block(int64_t block, const Compute& compute) const {
    tell_block(block, true);
    const at::Tensor result = compute();
    tell_block(block, false);
    return result;
  }
  void tell_block(int64_t block, bool begins) const {
    if (hook_) {
      hook_(block, begins);
    }
  }

  /// The errors of encode().
  void check(const TextTokens& tokens, const TextLayer& layer) const;
  /// Rows of the vocabulary `table`, fp32 [rows, width] on `device`.
  [[nodiscard]] static at::Tensor embed(const TextTokens& tokens, const nn::Parameter& table,
                                        at::Device device);

 private:
  TextBlockHook hook_;
  TextLayer layer_;
  TextFill fill_;
};

}  // namespace kinora::models
