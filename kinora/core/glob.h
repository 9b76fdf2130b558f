#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

/// Patterns over names such as "blocks.3.attn.qkv.weight".
namespace kinora {

/// Whether `pattern` is all of `text`: `*` stands for any characters, dots too, or none, and `?`
/// for one.
[[nodiscard]] bool glob_matches(std::string_view pattern, std::string_view text);

/// For each name whether any of the patterns is it. kConfig for a pattern that is none: `key` is
/// where it stands, and the hint has the names most like it.
[[nodiscard]] std::vector<bool> match_globs(const std::vector<std::string>& patterns,
                                            const std::vector<std::string>& names,
                                            std::string_view key);

/// The names most like `name`, at most `most`, each once, numbers between dots as `*`.
[[nodiscard]] std::vector<std::string> near_names(std::string_view name,
                                                  const std::vector<std::string>& names,
                                                  size_t most);

}  // namespace kinora
