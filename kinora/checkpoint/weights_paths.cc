#include "kinora/checkpoint/weights_paths.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kinora/core/error.h"
#include "kinora/io/file.h"

namespace kinora::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kMaxIndexBytes = int64_t{1} << 26;
constexpr std::string_view kIndexEnd = ".index.json";
constexpr const char* kStems[] = {"diffusion_pytorch_model", "model", "pytorch_model"};
constexpr const char* kExtensions[] = {".safetensors", ".bin", ".pt"};

bool is_index(const fs::path& path) {
  return path.filename().string().ends_with(kIndexEnd);
}

/// The file of shard `name`, which must not lead out of the folder.
fs::path shard_path(const fs::path& index, const std::string& name) {
  const bool is_plain = !name.empty() && name != "." && name != ".." &&
                        name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
  KINORA_CHECK(is_plain, kIo, "[weights] ", index, " must name files beside it, got ",
               io::in_quotes(name));
  fs::path path = index.parent_path() / name;
  KINORA_CHECK(fs::is_regular_file(path), kIo, "[weights] ", index, " names ", io::in_quotes(name),
               ", which is not beside it. Hint: the download may not be complete");
  return path;
}

WeightsPaths read_index(const fs::path& index) {
  const json values =
      json::parse(io::read_text(index, kMaxIndexBytes), nullptr, /*allow_exceptions=*/false);
  KINORA_CHECK(values.is_object() && values.contains("weight_map") &&
                   values["weight_map"].is_object() && !values["weight_map"].empty(),
               kIo, "[weights] ", index, " must be a JSON object with a weight_map");
  WeightsPaths paths;
  std::map<std::string, size_t> numbers;
  for (const auto& [tensor, shard] : values["weight_map"].items()) {
    KINORA_CHECK(shard.is_string(), kIo, "[weights] ", index, ": the shard of ",
                 io::in_quotes(tensor), " must be text, got another kind");
    const std::string name = shard.get<std::string>();
    const auto [found, is_new] = numbers.emplace(name, paths.files.size());
    if (is_new) {
      paths.files.push_back(shard_path(index, name));
    }
    paths.shard_of.emplace(tensor, found->second);
  }
  return paths;
}

/// The weights' file or index in `folder`; empty if there is none.
fs::path weights_in(const fs::path& folder) {
  for (const char* stem : kStems) {
    for (const char* extension : kExtensions) {
      const std::string name = std::string(stem) + extension;
      for (const fs::path& path : {folder / name, folder / (name + std::string(kIndexEnd))}) {
        if (fs::exists(path)) {
          return path;
        }
      }
    }
  }
  return {};
}

}  // namespace

fs::path diffusers_folder(const fs::path& path) {
  for (fs::path folder : {path, path / "transformer", path / "unet"}) {
    if (fs::is_regular_file(folder / "config.json")) {
      return folder;
    }
  }
  return {};
}

fs::path open_sora_file(const fs::path& folder) {
  fs::path found;
  if (!fs::is_directory(folder)) {
    return found;
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path& path = entry.path();
    const fs::path extension = path.extension();
    if (!path.filename().string().starts_with("OpenSora-v1-") ||
        (extension != ".pth" && extension != ".pt" && extension != ".safetensors")) {
      continue;
    }
    KINORA_CHECK(found.empty(), kConfig, "[weights] ", folder, " must hold one model, got ",
                 found.filename(), " and ", path.filename());
    found = path;
  }
  return found;
}

fs::path open_sora2_file(const fs::path& folder) {
  for (const std::string_view name : kOpenSora2Files) {
    if (fs::is_regular_file(folder / name)) {
      return folder / name;
    }
  }
  return {};
}

WeightsPaths find_weights(const fs::path& path) {
  if (!fs::is_directory(path)) {
    return is_index(path) ? read_index(path) : WeightsPaths{.files = {path}};
  }
  fs::path folder = diffusers_folder(path);
  if (folder.empty()) {
    folder = path;
  }
  fs::path found = weights_in(folder);
  for (const fs::path& place : {path / "transformer", path}) {
    found = found.empty() ? open_sora_file(place) : found;
  }
  found = found.empty() ? open_sora2_file(path) : found;
  KINORA_CHECK(!found.empty(), kIo, "[weights] ", folder,
               " is neither a checkpoint nor a run with one, nor does it hold ", kStems[0],
               ".safetensors, ", kStems[1], ".safetensors or such a file's ", kIndexEnd,
               ". Hint: name the file itself, also one of a variant (.fp16)");
  WeightsPaths paths = find_weights(found);
  if (fs::exists(folder / kBesideDiffusers)) {
    paths.files.push_back(folder / kBesideDiffusers);
  }
  return paths;
}

}  // namespace kinora::checkpoint
