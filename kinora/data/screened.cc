#include "kinora/data/screened.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <numeric>
#include <utility>

#include "kinora/core/counted.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/data/causes.h"
#include "kinora/io/file.h"

namespace kinora::data {
namespace {

constexpr int64_t kMaxListBytes = int64_t{1} << 30;

class ScreenedSource : public WrappedSource {
 public:
  ScreenedSource(std::unique_ptr<Source> inner, std::vector<int64_t> kept, Index index)
      : WrappedSource(std::move(inner)), kept_(std::move(kept)), index_(std::move(index)) {}

  [[nodiscard]] int64_t size() const override { return std::ssize(kept_); }
  [[nodiscard]] std::string sample_name(int64_t index) const override {
    return WrappedSource::sample_name(inside(index));
  }
  void read(int64_t index, Sample& out) const override { WrappedSource::read(inside(index), out); }
  [[nodiscard]] SampleFacts facts(int64_t index) const override {
    const std::optional<IndexEntry> known = index_.find(sample_name(index));
    return known && known->is_usable() ? known->facts : WrappedSource::facts(inside(index));
  }
  [[nodiscard]] SampleFacts check(int64_t index, Sample& scratch) const override {
    return WrappedSource::check(inside(index), scratch);
  }
  [[nodiscard]] uint64_t stamp(int64_t index) const override {
    return WrappedSource::stamp(inside(index));
  }

 private:
  [[nodiscard]] int64_t inside(int64_t index) const { return kept_[static_cast<size_t>(index)]; }

  std::vector<int64_t> kept_;
  Index index_;
};

// The causes of what is rejected, and how many they are.
class Rejections {
 public:
  void add(std::string cause) {
    constexpr int64_t kNumNamed = 5;
    if (count_++ < kNumNamed) {
      list_ += "\n  " + std::move(cause);
    }
  }

  void check(int64_t size, int64_t max_bad) const {
    const int64_t limit = allowed_bad(size, max_bad);
    KINORA_CHECK(count_ <= limit, kIo, "[data] at most ", limit, " of ", size,
                 " samples may be unusable, got ", count_, "; the first of them:", list_,
                 "\nHint: mend or remove them, put them into data.quarantine (kinora data check "
                 "--quarantine), or raise data.max_bad.");
  }

 private:
  int64_t count_ = 0;
  std::string list_;
};

}  // namespace

Quarantine read_quarantine(const std::filesystem::path& path) {
  const std::string text = io::read_text(path, kMaxListBytes);
  Quarantine quarantine;
  for (std::string_view line : kinora::split(text, '\n')) {
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (!line.empty() && !line.starts_with('#')) {
      const size_t tab = std::min(line.find('\t'), line.size());
      quarantine.emplace(line.substr(0, tab), trim(line.substr(tab)));
    }
  }
  return quarantine;
}

void write_quarantine(const std::filesystem::path& path, const Quarantine& quarantine) {
  std::string text = "# Samples that are passed over: a name a line, behind a tab why.\n";
  for (const auto& [name, cause] : quarantine) {
    KINORA_CHECK(name.find_first_of("\t\r\n") == std::string::npos && !name.starts_with('#'), kIo,
                 "[data] a sample in quarantine must have a name without tabs and line ends, got ",
                 io::in_quotes(name), ". Hint: rename it, or raise data.max_bad");
    std::string line = cause;
    std::replace_if(
        line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
    text += name + "\t" + line + "\n";
  }
  io::write_file_atomic(path, text);
}

std::unique_ptr<Source> screen(std::unique_ptr<Source> source, const ScreeningOptions& options) {
  const Quarantine quarantine =
      options.quarantine.empty() ? Quarantine() : read_quarantine(options.quarantine);
  KINORA_CHECK(options.index.empty() || std::filesystem::exists(options.index), kConfig,
               "[data] data.index must be there, got no file ", options.index.string(),
               ". Hint: kinora data check RECIPE makes it");
  Index index = options.index.empty() ? Index() : Index::open(options.index);
  Rejections rejections;
  for (const PassedOver& one : source->passed_over()) {
    if (one.is_rejected && !quarantine.contains(one.name)) {
      rejections.add(one.name + ": " + one.cause);
    }
  }
  std::vector<int64_t> kept;
  int64_t num_unknown = 0;
  std::deque<std::string> names;  // of what is left out
  NamesByCause left_out;
  for (int64_t i = 0; i < source->size() && !(quarantine.empty() && index.size() == 0); ++i) {
    const std::string name = source->sample_name(i);
    const std::optional<IndexEntry> known = index.find(name);
    num_unknown += known ? 0 : 1;
    if (quarantine.contains(name)) {
      left_out["in quarantine"].push_back(names.emplace_back(name));
    } else if (known && !known->is_usable()) {
      rejections.add(std::string(known->cause));
      left_out[cause_kind(known->cause, name)].push_back(names.emplace_back(name));
    } else {
      kept.push_back(i);
    }
  }
  rejections.check(source->size(), options.max_bad);
  if (quarantine.empty() && index.size() == 0) {
    return source;
  }
  if (index.size() > 0 && num_unknown > 0) {
    log_warn("[data] ", counted(num_unknown, "sample is", "samples are"), " not in ",
             options.index.string(), " yet. Hint: kinora data check");
  }
  log_info("[data] ", kept.size(), " of ", counted(source->size(), "sample"), " will be used",
           left_out.empty() ? "" : "; left out:", lines_of(left_out));
  check_size(std::ssize(kept), "what is left of the set");
  return std::make_unique<ScreenedSource>(std::move(source), std::move(kept), std::move(index));
}

std::unique_ptr<Source> with_known_facts(std::unique_ptr<Source> source, Index index) {
  std::vector<int64_t> all(static_cast<size_t>(source->size()));
  std::iota(all.begin(), all.end(), int64_t{0});
  return std::make_unique<ScreenedSource>(std::move(source), std::move(all), std::move(index));
}

}  // namespace kinora::data
