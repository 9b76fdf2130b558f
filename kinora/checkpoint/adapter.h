#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/nn/low_rank.h"

/// Adapters (nn::LowRankUpdate) apart from a model, and merged into weights.
namespace kinora::checkpoint {

/// A change of neighbouring rows of a weight, [out, in] or [out, in, kernel...].
struct LowRankChange {
  std::string name = {};  ///< of the layer, as where it comes from has it
  nn::UpdateKind kind = nn::UpdateKind::kLora;
  /// fp32 on the CPU, in the shapes of where it comes from, by PEFT's names: lora_A and lora_B;
  /// hada_w1_a, hada_w1_b, hada_w2_a, hada_w2_b; lokr_w1 or lokr_w1_a and lokr_w1_b, lokr_w2 or
  /// lokr_w2_a and lokr_w2_b.
  std::map<std::string, at::Tensor> factors = {};
  at::Tensor magnitude = {};  ///< [rows], of DoRA; undefined: none
  int64_t rank = 0;           ///< 0: nothing says it
  double alpha = 0.0;         ///< 0: nothing says it
  double scale = 1.0;
  int64_t first_row = 0;
  int64_t places = 1;                  ///< of the weight's kernel
  at::ScalarType stored = at::kFloat;  ///< type in the file

  /// Of the weight that it changes, and the elements of each.
  [[nodiscard]] int64_t num_rows() const;
  [[nodiscard]] int64_t row_elements() const;
};

/// A change of these factors. `origin` and `name`: for errors. kIo where they are not those of a
/// kind, or do not fit each other.
[[nodiscard]] LowRankChange make_change(const std::string& name,
                                        std::map<std::string, at::Tensor> factors,
                                        const std::string& origin);

/// Rows `first`, ... of a change as one of its own. kConfig for a LoKr, whose rows are products.
[[nodiscard]] LowRankChange rows_of(const LowRankChange& change, int64_t first, int64_t rows);

/// The change with what `reordered` makes of each of its factors that has the weight's rows.
/// kConfig for a LoKr.
[[nodiscard]] LowRankChange with_rows(
    LowRankChange change, const std::function<at::Tensor(const at::Tensor& rows)>& reordered);

/// The same change of a weight of `dims` dims, whose kernel is of one place: as PEFT has it for a
/// linear (2) or a convolution (4).
[[nodiscard]] LowRankChange with_dims(LowRankChange change, size_t dims);

struct Adapter {
  std::string origin;
  bool rslora = false;
  int64_t factor = -1;  ///< of LoKr, as in nn::LowRankOptions
  std::map<std::string, std::vector<LowRankChange>> changes = {};  ///< by the weight's path
  /// What was trained whole: these take the place of weights.
  LateTensors whole = {};
  std::vector<std::string> left_out = {};  ///< keys of what it was not read for
};

/// Merges: W + weight * change for each adapter, in double, rounded once to fp32; of DoRA
/// m (W + weight * s B A) / |.| by rows. weight: 1 for what an adapter was trained to be. The bits
/// do not depend on threads or on how rows are read. kConfig where DoRA meets another adapter of
/// the same rows.
struct WeightedAdapter {
  Adapter adapter;
  double weight = 1.0;
};
void merge(LateTensors& weights, const std::vector<WeightedAdapter>& adapters);

/// "FILE" or "FILE:0.8". kConfig for a weight that is not finite.
struct AdapterChoice {
  std::filesystem::path path;
  double weight = 1.0;
};
[[nodiscard]] AdapterChoice parse_adapter_choice(const std::string& text);

}  // namespace kinora::checkpoint
