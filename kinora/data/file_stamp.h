#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>

namespace kinora::data {

/// A number made of `parts`, in their order.
[[nodiscard]] uint64_t mix_stamps(std::initializer_list<uint64_t> parts);

/// A number made of the file's size and time of change; 0 if there is no such file. Nothing is
/// opened.
[[nodiscard]] uint64_t file_stamp(const std::filesystem::path& path);

}  // namespace kinora::data
