#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kinora::data {

/// The paths that `pattern` stands for: "{000..012}" for the numbers from 000 to 012, with as many
/// digits, "{a,b}" for a and b; several one after the other vary the last one fastest. Other braces
/// mean themselves. Error (kConfig): more than a million paths, a range that falls.
[[nodiscard]] std::vector<std::string> expand_braces(std::string_view pattern);

}  // namespace kinora::data
