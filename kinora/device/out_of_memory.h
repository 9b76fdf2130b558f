#pragma once

#include <exception>
#include <optional>
#include <string>

namespace kinora::device {

/// What libtorch, the system or we say of memory that is not there, on a GPU or the host; nothing
/// for other errors.
[[nodiscard]] std::optional<std::string> out_of_memory_text(const std::exception& error);

}  // namespace kinora::device
