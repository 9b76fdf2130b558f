#include "kinora/inference/sample_folder.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/data/latent_cache.h"
#include "kinora/io/file.h"

namespace kinora::inference {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKeyFile = "drawing.json";
constexpr const char* kLockFile = "lock";
constexpr int64_t kMaxKeyBytes = int64_t{1} << 24;

bool is_sample(const std::string& name) {
  static const std::regex kNames(
      R"((image|clip)-\d{5,}(_class-\d+)?(\.(png|webp|gif|mp4))?|grid\.png|latents\.safetensors)");
  return std::regex_match(name, kNames);
}

/// What has io::temporary_name of a file of a drawing: a process was killed while it wrote it.
bool is_unfinished(const std::string& name) {
  constexpr std::string_view kEnding = ".tmp";
  if (!name.ends_with(kEnding)) {
    return false;
  }
  const std::string whole = name.substr(0, name.rfind('.', name.size() - kEnding.size() - 1));
  return is_sample(whole) || whole == kKeyFile;
}

template <typename Wanted>
std::vector<fs::path> entries_of(const fs::path& folder, const Wanted& wanted) {
  std::vector<fs::path> entries;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (wanted(entry.path().filename().string())) {
      entries.push_back(entry.path());
    }
  }
  return entries;
}

/// All that a drawing has written, but for what says what it is.
std::vector<fs::path> written_in(const fs::path& folder) {
  std::vector<fs::path> entries = entries_of(folder, is_sample);
  const std::vector<fs::path> scratch =
      entries_of(scratch_of(folder), [](const std::string& name) { return name != kLockFile; });
  entries.insert(entries.end(), scratch.begin(), scratch.end());
  return entries;
}

void remove(const std::vector<fs::path>& entries) {
  for (const fs::path& entry : entries) {
    std::error_code failure;
    fs::remove_all(entry, failure);
    KINORA_CHECK(!failure, kIo, "[sample] cannot remove ", entry.string(), ": ", failure.message());
  }
}

/// Nothing where the folder has none.
std::optional<DrawingKey> read_key(const fs::path& folder) {
  const fs::path path = folder / kKeyFile;
  if (!fs::exists(path)) {
    return std::nullopt;
  }
  try {
    return nlohmann::json::parse(io::read_text(path, kMaxKeyBytes)).get<DrawingKey>();
  } catch (const nlohmann::json::exception&) {
    return DrawingKey{};  // of no drawing
  }
}

/// Of the samples that a key is of; nothing where it does not say, as of no drawing.
std::optional<int64_t> count_of(const DrawingKey& key) {
  const auto found = key.find("count");
  int64_t count = 0;
  if (found == key.end()) {
    return std::nullopt;
  }
  const char* const end = found->second.data() + found->second.size();
  const auto read = std::from_chars(found->second.data(), end, count);
  return read.ec == std::errc() && read.ptr == end ? std::optional(count) : std::nullopt;
}

/// Whether what was drawn before are samples of this drawing: all, or the first ones.
bool belongs(const DrawingKey& before, int64_t count, const KeyOfFirst& key_of) {
  const std::optional<int64_t> fewer = count_of(before);
  return before == key_of(count) ||
         (fewer && *fewer >= 0 && *fewer < count && before == key_of(*fewer));
}

}  // namespace

fs::path scratch_of(const fs::path& folder) {
  return folder / ".drawing";
}

io::FileLock claim_folder(const fs::path& folder, int64_t count, const KeyOfFirst& key_of,
                          bool overwrite) {
  const DrawingKey key = key_of(count);
  io::check_can_write(scratch_of(folder));
  std::optional<io::FileLock> lock = io::FileLock::take(scratch_of(folder) / kLockFile);
  KINORA_CHECK(lock, kIo, "[sample] another process draws into ", folder.string(),
               ". Hint: stop it, or give another --out");
  remove(entries_of(folder, is_unfinished));
  remove(entries_of(scratch_of(folder),
                    [](const std::string& name) { return name.ends_with(".tmp"); }));
  if (overwrite) {
    remove(written_in(folder));
  }
  const std::optional<DrawingKey> before = read_key(folder);
  if (const std::vector<fs::path> written = written_in(folder); !written.empty()) {
    KINORA_CHECK(before, kConfig, "[sample] ", folder.string(),
                 " must hold no samples of an unknown drawing, got ",
                 written.front().filename().string(),
                 ". Hint: --overwrite removes them, or give another --out");
    KINORA_CHECK(belongs(*before, count, key_of), kConfig, "[sample] ", folder.string(),
                 " holds samples of another drawing: ", data::difference(*before, key),
                 ". Hint: --overwrite removes them, or give another --out");
  }
  if (before != key) {
    io::write_file_atomic(folder / kKeyFile, nlohmann::json(key).dump(1) + "\n");
  }
  return std::move(*lock);
}

}  // namespace kinora::inference
