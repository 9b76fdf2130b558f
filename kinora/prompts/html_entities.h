#pragma once

#include <string_view>

namespace kinora::prompts {

/// The text, UTF-8, that a named character reference of HTML 5 stands for: "amp;" and, as it is of
/// HTML 4, "amp" are "&". Empty for names that there are not.
[[nodiscard]] std::string_view find_html_entity(std::string_view name);

}  // namespace kinora::prompts
