#pragma once

#include <cstdint>
#include <vector>

#include "kinora/models/text_encoders/activation.h"
#include "kinora/models/text_encoders/ragged_attention.h"
#include "kinora/models/text_encoders/text_linear.h"
#include "kinora/nn/layer_norm.h"
#include "kinora/nn/module.h"

/// What both towers of CLIP are made of.
namespace kinora::models {

struct ClipBlockConfig {
  int64_t width = 0;
  int64_t hidden = 0;      ///< channels within the MLP
  int64_t num_blocks = 0;  ///< of the tower: initial weights shrink with it
  int64_t num_heads = 0;
  Activation activation = Activation::kQuickGelu;
  double layer_norm_eps = 1e-5;
  bool causal = false;  ///< a token sees itself and those before it
};

/// x + out_proj(attention(norm(x))), then x + fc2(activation(fc1(norm(x)))).
class ClipBlock : public nn::Module {
 public:
  /// kConfig where the heads do not divide the width.
  explicit ClipBlock(const ClipBlockConfig& config);
  /// x: fp32 [rows, C]; returns the same.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const RaggedRows& rows) const;

  [[nodiscard]] std::vector<TextLinear*> linears();

  TextLinear k_proj;
  TextLinear v_proj;
  TextLinear q_proj;
  TextLinear out_proj;
  nn::LayerNorm layer_norm1;
  TextLinear fc1;
  TextLinear fc2;
  nn::LayerNorm layer_norm2;

 private:
  int64_t num_heads_;
  Activation activation_;
  bool causal_;
};

/// Of the normals that CLIP's weights start as: 1 / sqrt(width).
[[nodiscard]] double clip_std(int64_t width);

}  // namespace kinora::models
