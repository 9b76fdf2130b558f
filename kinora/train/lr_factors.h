#pragma once

#include <string>
#include <vector>

namespace kinora {
class Fields;
}

namespace kinora::train {

/// The keys lr.layer_decay and lr.factors.
struct LrFactors {
  double layer_decay = 1.0;
  std::vector<std::string> patterns;  ///< "PATTERN=FACTOR"
};

void describe(Fields& fields, LrFactors& factors);

/// The parts of a "PATTERN=FACTOR".
struct LrFactor {
  std::string pattern;
  double factor = 1.0;
};
/// kConfig where it is none, or the factor is negative or not finite.
[[nodiscard]] LrFactor parse_lr_factor(const std::string& text);

}  // namespace kinora::train
