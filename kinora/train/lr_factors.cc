#include "kinora/train/lr_factors.h"

#include <charconv>
#include <cmath>

#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora::train {

void describe(Fields& fields, LrFactors& factors) {
  const auto scope = fields.scope("lr");
  fields.add("layer_decay", factors.layer_decay,
             "Factor of the learning rate from block to block, from the last one down: d for the "
             "last block, d^2 for the one before, d^(depth + 1) for the embedders, 1 for the final "
             "layer.",
             {.min = 0, .max = 1, .min_open = true, .max_open = false});
  fields.add("factors", factors.patterns,
             "Factors of the learning rate by patterns over parameters' paths: "
             "[y_embedder.*=10, blocks.0.*=0.1]; the first that fits counts, times "
             "lr.layer_decay's.");
}

LrFactor parse_lr_factor(const std::string& text) {
  const size_t equals = text.rfind('=');
  LrFactor result;
  bool is_number = false;
  if (equals != std::string::npos) {
    const std::string_view number = trim(std::string_view(text).substr(equals + 1));
    const char* end = number.data() + number.size();
    const auto parsed = std::from_chars(number.data(), end, result.factor);
    is_number = parsed.ec == std::errc() && parsed.ptr == end;
    result.pattern = trim(std::string_view(text).substr(0, equals));
  }
  KINORA_CHECK(
      is_number && !result.pattern.empty() && std::isfinite(result.factor) && result.factor >= 0.0,
      kConfig, "[lr] lr.factors must be PATTERN=FACTOR with a factor of 0 or more, got ",
      quote(text), ". Hint: y_embedder.*=10");
  return result;
}

}  // namespace kinora::train
