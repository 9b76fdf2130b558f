#include "kinora/data/guess_set.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "kinora/core/error.h"
#include "kinora/data/class_names.h"
#include "kinora/data/media_set.h"
#include "kinora/data/path_patterns.h"
#include "kinora/io/tar.h"

namespace kinora::data {
namespace {

namespace fs = std::filesystem;

SourceKind kind_of_archive(const fs::path& path) {
  constexpr std::array<std::string_view, 3> kParts = {".txt", ".json", ".cls"};
  const io::TarFile archive = io::TarFile::open(path);
  bool in_folders = true;
  bool has_parts = false;
  for (const io::TarEntry& entry : archive.entries()) {
    const std::string_view name = entry.name;
    const std::string_view file = name.substr(name.rfind('/') + 1);
    has_parts = has_parts || has_suffix(file, kParts);
    in_folders = in_folders && (name.find('/') != std::string_view::npos || !is_image_name(file));
  }
  return has_parts || !in_folders ? SourceKind::kWebDataset : SourceKind::kTar;
}

SourceKind kind_of_folder(const fs::path& folder) {
  constexpr std::array<std::string_view, 2> kCaptions = {".txt", ".json"};
  std::error_code ignored;
  for (const char* place : {".", "train", "training"}) {
    for (const char* name : {"metadata.csv", "metadata.jsonl", "metadata.parquet"}) {
      if (fs::is_regular_file(folder / place / name, ignored)) {
        return SourceKind::kImageFolder;
      }
    }
  }
  bool in_folders = true;  // each picture in a folder of its class
  bool has_captions = false;
  for (const std::string& path : walk(folder).files) {
    const std::string file = fs::path(path).filename().string();
    has_captions = has_captions || has_suffix(file, kCaptions);
    in_folders =
        in_folders && (std::count(path.begin(), path.end(), '/') == 1 || !is_image_name(file));
  }
  return has_captions || !in_folders ? SourceKind::kCaptions : SourceKind::kFolder;
}

}  // namespace

std::string layout_text(SourceKind source) {
  switch (source) {
    case SourceKind::kFolder:
      return "data.source=folder (a folder for each class)";
    case SourceKind::kTar:
      return "data.source=tar (an archive with a folder for each class)";
    case SourceKind::kCaptions:
      return "data.source=captions (pictures without classes, with captions beside them or none)";
    case SourceKind::kManifest:
      return "data.source=manifest (a table of paths and captions)";
    case SourceKind::kWebDataset:
      return "data.source=webdataset (an archive of pictures with captions or classes by key)";
    case SourceKind::kImageFolder:
      return "data.source=imagefolder (a folder with metadata)";
    case SourceKind::kLatents:
      return "data.source=latents (latents of an autoencoder)";
    case SourceKind::kShapes:
    case SourceKind::kMovingShapes:
    case SourceKind::kScenes:
      break;
  }
  KINORA_UNREACHABLE("[data] generated sets are not guessed");
}

DataConfig guess_set(const std::string& path) {
  DataConfig config;
  config.path = {path};
  const std::vector<std::string> paths = expand_braces(path);
  const std::string file = fs::path(paths.front()).filename().string();
  constexpr std::array<std::string_view, 4> kTables = {".csv", ".jsonl", ".ndjson", ".parquet"};
  std::error_code ignored;
  if (fs::is_directory(paths.front(), ignored)) {
    config.source = kind_of_folder(paths.front());
  } else if (has_suffix(file, kTables)) {
    config.source = SourceKind::kManifest;
  } else if (has_suffix(file, std::array<std::string_view, 1>{".tar"})) {
    config.source = kind_of_archive(paths.front());
  } else if (has_suffix(file, std::array<std::string_view, 1>{".safetensors"})) {
    config.source = SourceKind::kLatents;
  } else {
    throw_error(ErrorKind::kConfig,
                "[data] must be a folder, a manifest (.csv, .jsonl, .ndjson, .parquet), an archive "
                "(.tar) or latents (.safetensors), got ",
                path, ". Hint: for others give a recipe with data.source");
  }
  return config;
}

}  // namespace kinora::data
