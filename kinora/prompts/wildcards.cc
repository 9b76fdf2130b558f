#include "kinora/prompts/wildcards.h"

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/nearest_name.h"
#include "kinora/core/philox.h"
#include "kinora/core/text.h"
#include "kinora/io/file.h"
#include "kinora/prompts/prompt_weights.h"

namespace kinora::prompts {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = "__";
constexpr const char* kEnding = ".txt";
constexpr int64_t kMostListBytes = int64_t{1} << 26;
constexpr int kMostDepth = 16;
constexpr uint32_t kMostWildcards = 10000;  // of a prompt
constexpr size_t kNamesInMessage = 8;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '/';
}

/// Names of folders and a file that cannot lead out of where they begin: no points, no part empty.
bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, is_name_character) && text.front() != '/' &&
         text.back() != '/' && text.find("//") == std::string_view::npos;
}

struct Found {
  size_t begin;  // of the first mark
  size_t end;    // behind the second
  std::string_view name;
};

/// The first wildcard from `from` on.
std::optional<Found> find_wildcard(std::string_view text, size_t from) {
  size_t begin = text.find(kMark, from);
  while (begin != std::string_view::npos) {
    const size_t inside = begin + kMark.size();
    const size_t close = text.find(kMark, inside);
    if (close == std::string_view::npos) {
      return std::nullopt;
    }
    if (const std::string_view name = text.substr(inside, close - inside); is_name(name)) {
      return Found{.begin = begin, .end = close + kMark.size(), .name = name};
    }
    begin = text.find(kMark, begin + 1);
  }
  return std::nullopt;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code failure;
  for (fs::recursive_directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    fs::path name = entry->path().lexically_relative(folder);
    if (name.extension() == kEnding && is_name(name.replace_extension().generic_string())) {
      names.push_back(name.generic_string());
    }
  }
  std::ranges::sort(names);
  return names;
}

bool lies_within(const fs::path& file, const fs::path& folder) {
  const fs::path inside = file.lexically_relative(folder);
  return !inside.empty() && *inside.begin() != "..";
}

}  // namespace

struct Wildcards::Expansion {
  uint64_t seed;
  uint64_t sample;
  uint32_t num_wildcards = 0;
  std::string text = {};
};

Wildcards::Wildcards(fs::path folder) : folder_(std::move(folder)) {
  KINORA_CHECK(fs::is_directory(folder_), kIo, "[prompt] wildcards must be a folder of lists, got ",
               folder_.string());
  folder_ = fs::canonical(folder_);
}

std::string Wildcards::expanded(std::string_view prompt, uint64_t seed, uint64_t sample) {
  Expansion expansion{.seed = seed, .sample = sample};
  expand(prompt, 0, expansion);
  return std::move(expansion.text);
}

void Wildcards::expand(std::string_view prompt, int depth, Expansion& expansion) {
  KINORA_CHECK(depth <= kMostDepth, kConfig, "[prompt] lists of wildcards must not be more than ",
               kMostDepth, " deep. Hint: they may name each other in a circle");
  size_t at = 0;
  while (const std::optional<Found> found = find_wildcard(prompt, at)) {
    expansion.text += prompt.substr(at, found->begin - at);
    at = found->end;
    KINORA_CHECK(expansion.num_wildcards < kMostWildcards, kConfig,
                 "[prompt] a prompt must have at most ", kMostWildcards, " wildcards, got more");
    const std::vector<std::string>& lines = lines_of(std::string(found->name));
    const RandomStream stream{.seed = expansion.seed,
                              .sample = expansion.sample,
                              .step = expansion.num_wildcards,
                              .purpose = RandomPurpose::kGenerate};
    ++expansion.num_wildcards;
    expand(lines[random_index(stream, 0, static_cast<uint32_t>(lines.size()))], depth + 1,
           expansion);
  }
  expansion.text += prompt.substr(at);
  KINORA_CHECK(expansion.text.size() <= kMostPromptBytes, kConfig,
               "[prompt] with its wildcards a prompt must be at most ",
               human_bytes(kMostPromptBytes), " long, got more");
}

const std::vector<std::string>& Wildcards::lines_of(const std::string& name) {
  if (const auto found = lists_.find(name); found != lists_.end()) {
    return found->second;
  }
  const fs::path path = folder_ / (name + kEnding);
  std::error_code failure;
  const fs::path file = fs::canonical(path, failure);
  if (failure) {
    const std::vector<std::string> names = names_in(folder_);
    const std::string nearest = nearest_name(name, names);
    throw_error(ErrorKind::kConfig, "[prompt] there is no list for the wildcard ", quote(name),
                ", no file ", path.string(), ". Hint: ",
                !nearest.empty() ? "did you mean " + nearest + "?"
                : names.empty()  ? "the folder has none"
                                 : "there are " + list_names(names, kNamesInMessage));
  }
  KINORA_CHECK(lies_within(file, folder_), kIo, "[prompt] the list ", path.string(),
               " must lie in its folder, got a link to ", file.string());
  const std::string text = io::read_text(file, kMostListBytes);
  std::vector<std::string> lines;
  for (const std::string_view line : split(text, '\n')) {
    if (const std::string_view content = trim(line); !content.empty() && content[0] != '#') {
      lines.emplace_back(content);
    }
  }
  KINORA_CHECK(!lines.empty(), kConfig, "[prompt] the list ", path.string(),
               " must have at least one line");
  KINORA_CHECK(is_utf8(text), kConfig, "[prompt] the list ", path.string(), " must be UTF-8");
  return lists_.emplace(name, std::move(lines)).first->second;
}

}  // namespace kinora::prompts
