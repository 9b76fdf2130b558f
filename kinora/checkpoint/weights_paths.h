#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

/// Which files a path to weights means.
namespace kinora::checkpoint {

/// What diffusers has no name for, beside its file.
inline constexpr const char* kBesideDiffusers = "kinora.safetensors";

/// Files that make up one set of weights.
struct WeightsPaths {
  std::vector<std::filesystem::path> files;
  /// The number in `files` of the file that must have a tensor, by its name; empty where no index
  /// says so.
  std::map<std::string, size_t> shard_of = {};
};

/// The folder of a diffusers' model that `path` means, itself, transformer/ or unet/ in it; empty
/// if it is none: it has config.json.
[[nodiscard]] std::filesystem::path diffusers_folder(const std::filesystem::path& path);

/// Open-Sora 1.0's file in `folder`, OpenSora-v1-*.pth as its hub names them, or as .pt or
/// .safetensors; empty if there is none. kConfig where there are several.
[[nodiscard]] std::filesystem::path open_sora_file(const std::filesystem::path& folder);

/// What Open-Sora 2's hub calls its transformer, and that of high compression.
inline constexpr std::array<std::string_view, 2> kOpenSora2Files = {
    "Open_Sora_v2.safetensors", "Open_Sora_v2_Video_DC_AE.safetensors"};

/// The first of them in `folder`; empty if there is none.
[[nodiscard]] std::filesystem::path open_sora2_file(const std::filesystem::path& folder);

/// Of a file, an index (X.index.json), or a folder with one of those under a name that diffusers,
/// transformers or Open-Sora give it. kIo for what is no such thing, for an index that is not one,
/// and for one whose files lie elsewhere than beside it.
[[nodiscard]] WeightsPaths find_weights(const std::filesystem::path& path);

}  // namespace kinora::checkpoint
