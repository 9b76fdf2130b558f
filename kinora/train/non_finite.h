#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kinora/nn/module.h"
#include "kinora/optim/arena.h"

/// Finding where a NaN or an infinity comes from.
namespace kinora::train {

/// A module's output that is not finite.
struct NonFiniteOutput {
  std::string module;     ///< its path, such as "blocks.3.attn.qkv"
  int64_t count = 0;      ///< elements that are NaN or infinite
  int64_t numel = 0;      ///< of all its elements
  double finite_min = 0;  ///< over its finite elements; 0 if there are none
  double finite_max = 0;
};

/// Runs `forward` with a tap on `model` and reports the first module, in order of computation,
/// whose output is not finite; nothing if all are. Slow: it waits for every output.
[[nodiscard]] std::optional<NonFiniteOutput> find_non_finite_output(
    nn::Module& model, const std::function<void()>& forward);

/// "blocks.3.attn.qkv: 12 of 4096 values are not finite, the others lie in [-3, 7]"
[[nodiscard]] std::string to_string(const NonFiniteOutput& output);

/// Paths of the parameters whose gradients hold a NaN or an infinity. Where gradients are divided
/// all ranks call it and get the same.
[[nodiscard]] std::vector<std::string> non_finite_gradients(
    const std::vector<nn::NamedParameter>& parameters, const optim::Arena& arena);

}  // namespace kinora::train
