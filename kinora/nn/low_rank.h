#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kinora/nn/module.h"
#include "kinora/ops/linear_weights.h"

namespace kinora::nn {

/// What a low-rank update is made of.
enum class UpdateKind : uint8_t { kLora, kLoha, kLokr };

struct LowRankOptions {
  UpdateKind kind = UpdateKind::kLora;
  int64_t rank = 8;
  /// Of the update: alpha / rank, or alpha / sqrt(rank) (Kalajdzievski 2023, "rsLoRA").
  double scale = 1.0;
  bool dora = false;    ///< of kLora: norms of the weight's rows are trained apart
  int64_t factor = -1;  ///< of kLokr: see kronecker_factors()
};

/// `size` as a product of two, as PEFT divides sizes (LoKr): a positive `factor` that divides it
/// comes first; else the smaller one is, as near to the root of `size` as it can be and no larger
/// than a positive `factor`.
[[nodiscard]] std::pair<int64_t, int64_t> kronecker_factors(int64_t size, int64_t factor);

/// A trained change of a weight W that is frozen, with its bias. W is a linear's [out, in] or a
/// convolution's [out, in, kernel...]; n: the elements of one of its rows.
///
/// kLora (Hu et al. 2021, section 4.1): W + s B A with A [rank, in], B [out, rank]; of a
/// convolution A is a convolution [rank, in, kernel...], behind which B [out, rank, 1...] is one of
/// one place. A starts as a layer of PyTorch does, U(-1 / sqrt(n), 1 / sqrt(n)), B at zero. DoRA
/// (Liu et al. 2024, sections 4.1 and 4.3): m (W + s B A) / |W + s B A| with a magnitude m [out]
/// for the norm of each row, through which no gradient goes. m must be set to W's norms once W is
/// there.
/// kLoha (Hyeon-Woo et al. 2022, "FedPara", section 2.1): W + s (W1a W1b) * (W2a W2b), element by
/// element, each product [out, rank] [rank, n].
/// kLokr (Yeh et al. 2024, "LyCORIS", section 3.2): W + s (W1 kron W2), W1 [a, c] and W2 [b, d,
/// kernel...] with out = a b and in = c d by kronecker_factors(). W2 is W2a W2b, [b, rank] [rank,
/// d...], where the rank is below half of max(b, d). W1 starts at zero.
///
/// Keys as PEFT's: lora_A.weight, lora_B.weight, lora_magnitude_vector; hada_w1_a, hada_w1_b,
/// hada_w2_a, hada_w2_b; lokr_w1, lokr_w2 or lokr_w2_a and lokr_w2_b. Starts are PEFT's, too.
class LowRankUpdate : public Module {
 public:
  /// y of x by a weight, and a bias that may be undefined.
  using Product = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& weight,
                                           const at::Tensor& bias)>;

  LowRankUpdate(const std::vector<int64_t>& weight_shape, const LowRankOptions& options,
                bool fp32_island);

  /// x: [..., in] or [B, in, spatial...] in the weight's dtype. Returns what the layer computes
  /// with its changed weight, of which `product` computes with one.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& weight,
                                   const at::Tensor& bias, const Product& product) const;

  /// For the fast path: of a LoRA without magnitude, which has_weights().
  [[nodiscard]] ops::LowRankWeights weights() const;
  [[nodiscard]] bool has_weights() const {
    return options_.kind == UpdateKind::kLora && !options_.dora;
  }

  [[nodiscard]] const LowRankOptions& options() const { return options_; }

  /// Keeps this rank's part of the factor that has the dim of the weight that `box` cuts; the other
  /// is whole, and its gradient a sum over ranks. kConfig unless has_weights().
  void divide(Box box);

 private:
  void add(const std::string& name, const std::vector<int64_t>& shape, Init init);
  [[nodiscard]] at::Tensor factor(const std::string& name) const;
  /// Of W, for the kinds that multiply by one.
  [[nodiscard]] at::Tensor difference() const;
  [[nodiscard]] at::Tensor changed(const at::Tensor& x, const Product& product) const;

  LowRankOptions options_;
  std::vector<int64_t> weight_shape_;
  bool fp32_island_;
  std::map<std::string, Parameter> factors_;
};

/// The layer's path of an update's parameter: "blocks.0.qkv" of "blocks.0.qkv.lora_A.weight".
/// Nothing for other parameters.
[[nodiscard]] std::optional<std::string> owner_of_update(std::string_view path);

}  // namespace kinora::nn
