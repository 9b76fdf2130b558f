#pragma once

#include <string>

#include "kinora/core/config.h"
#include "kinora/core/config_yaml.h"

/// Single values of a configuration: from YAML and to YAML. Internal to core.
namespace kinora::config_detail {

/// What the key accepts: "an integer >= 1", "one of fp32, bf16".
[[nodiscard]] std::string expected(const Field& field);

/// The value as one line of YAML that parses back to the same bits.
[[nodiscard]] std::string format(const Field& field);

/// Sets the value from YAML; `origin` is the place that errors name, and is kept in the field.
void assign(Field& field, const YamlNode& node, const std::string& origin);

/// Whether the value, or every element of it, lies in the field's range.
[[nodiscard]] bool in_range(const Field& field);

}  // namespace kinora::config_detail
