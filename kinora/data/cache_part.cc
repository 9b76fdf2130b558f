#include "kinora/data/cache_part.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <span>

#include <nlohmann/json.hpp>

#include "kinora/core/error.h"
#include "kinora/core/log.h"

namespace kinora::data {
namespace {

using Json = nlohmann::ordered_json;

// Room for the header, whose text depends on the number of samples; moments begin on a page.
constexpr size_t kHeaderBytes = 4096;
constexpr size_t kLengthBytes = 8;
constexpr int64_t kMaxJournalBytes = int64_t{1} << 32;

std::string part_name(int64_t number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "part-%05lld", static_cast<long long>(number));
  return text.data();
}

/// A line of the journal.
struct Entry {
  int64_t first = 0;
  int64_t end = 0;
  std::string checksum;
  CachePartRecord record;
};

std::string line_of(const CacheBlock& block) {
  Json samples = Json::array();
  for (const CachedSample& sample : block.samples) {
    Json entry = {{"name", sample.name}, {"label", sample.label}};
    if (sample.number >= 0) {
      entry["number"] = sample.number;
    }
    if (!sample.caption.empty()) {
      entry["caption"] = sample.caption;
    }
    if (sample.fps > 0.0F) {
      entry["fps"] = sample.fps;
    }
    if (sample.pictured.height > 0) {
      entry["height"] = sample.pictured.height;
      entry["width"] = sample.pictured.width;
    }
    samples.push_back(std::move(entry));
  }
  Json left_out = Json::array();
  for (const LeftOut& one : block.left_out) {
    left_out.push_back({{"name", one.name}, {"reason", one.reason}});
  }
  const Json line = {{"first", block.first},
                     {"end", block.end},
                     {"checksum", io::checksum(block.moments)},
                     {"samples", std::move(samples)},
                     {"left_out", std::move(left_out)}};
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Nothing for a line that is torn or not a journal's.
std::optional<Entry> parse_line(const std::string& text) {
  const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    Entry entry{.first = line.at("first").get<int64_t>(),
                .end = line.at("end").get<int64_t>(),
                .checksum = line.at("checksum").get<std::string>(),
                .record = {}};
    for (const Json& sample : line.at("samples")) {
      entry.record.samples.push_back(
          {.name = sample.at("name").get<std::string>(),
           .caption = sample.value("caption", std::string()),
           .label = sample.at("label").get<int64_t>(),
           .fps = sample.value("fps", 0.0F),
           .number = sample.value("number", int64_t{-1}),
           .pictured = {sample.value("height", int64_t{0}), sample.value("width", int64_t{0})}});
    }
    for (const Json& one : line.at("left_out")) {
      entry.record.left_out.push_back(
          {one.at("name").get<std::string>(), one.at("reason").get<std::string>()});
    }
    return entry;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

/// Calls `see` with each line's entry and its bytes, until it returns false or a line is torn.
/// Returns the bytes of the lines that were seen and kept.
int64_t for_each_entry(const std::filesystem::path& journal,
                       const std::function<bool(Entry&&)>& see) {
  if (!std::filesystem::exists(journal)) {
    return 0;
  }
  const std::string text = io::read_text(journal, kMaxJournalBytes);
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    std::optional<Entry> entry = parse_line(text.substr(begin, end - begin));
    if (!entry || !see(std::move(*entry))) {
      break;
    }
    begin = end + 1;
  }
  return static_cast<int64_t>(begin);
}

std::string header_of(const LatentLayout& layout, int64_t samples) {
  const std::string parts = std::string("mean") + (layout.parts.std ? ", std" : "") +
                            (layout.parts.mirrored ? ", mirrored mean" : "") +
                            (layout.parts.mirrored && layout.parts.std ? ", mirrored std" : "");
  std::string header = io::safetensors_header(
      {{.name = "moments", .dtype = layout.dtype, .shape = layout.stored_shape(samples)}},
      {{"parts", parts}});
  KINORA_CHECK(header.size() <= kHeaderBytes, kInternal, "[cache] a header of ", header.size(),
               " bytes has no room");
  header.resize(kHeaderBytes, ' ');  // the format allows spaces behind the JSON
  uint64_t length = kHeaderBytes - kLengthBytes;
  for (size_t i = 0; i < kLengthBytes; ++i, length >>= 8) {
    header[i] = static_cast<char>(length & 0xff);
  }
  return header;
}

}  // namespace

CachePart::CachePart(const std::filesystem::path& folder, int64_t number, int64_t first,
                     int64_t end, const LatentLayout& layout)
    : path_(folder / file_name(number)),
      journal_path_(folder / (part_name(number) + ".jsonl")),
      end_(end),
      layout_(layout),
      next_(first) {
  recover();
}

std::string CachePart::file_name(int64_t number) {
  return part_name(number) + ".safetensors";
}

void CachePart::recover() {
  int64_t kept = 0;
  if (std::filesystem::exists(path_)) {
    const io::FileReader reader(path_);
    std::vector<std::byte> bytes;
    kept = for_each_entry(journal_path_, [&](Entry&& entry) {
      const auto count = std::ssize(entry.record.samples);
      const int64_t offset =
          static_cast<int64_t>(kHeaderBytes) + num_samples_ * layout_.sample_bytes();
      bytes.resize(static_cast<size_t>(count * layout_.sample_bytes()));
      if (entry.first != next_ || entry.end <= entry.first || entry.end > end_ ||
          offset + std::ssize(bytes) > reader.size()) {
        return false;
      }
      reader.read_at(offset, bytes);
      if (io::checksum(bytes) != entry.checksum) {
        log_warn("[cache] ", path_.string(), ": the block of samples ", entry.first, " to ",
                 entry.end - 1, " is damaged; it and what follows in this file are computed again");
        return false;
      }
      next_ = entry.end;
      num_samples_ += count;
      return true;
    });
  }
  if (std::filesystem::exists(journal_path_) &&
      std::cmp_not_equal(std::filesystem::file_size(journal_path_), kept)) {
    std::filesystem::resize_file(journal_path_, static_cast<uint64_t>(kept));
  }
}

void CachePart::add(const CacheBlock& block) {
  KINORA_CHECK(block.first == next_ && block.end > next_ && block.end <= end_ &&
                   std::ssize(block.moments) == std::ssize(block.samples) * layout_.sample_bytes(),
               kInternal, "[cache] a block must begin at sample ", next_, " and hold ",
               layout_.sample_bytes(), " bytes a sample, got ", block.first, " to ", block.end,
               " with ", block.moments.size(), " bytes of ", block.samples.size());
  if (!writer_) {
    writer_ = std::make_unique<io::FileWriter>(path_, io::FileWriter::Create::kKeep);
    journal_ = std::make_unique<io::AppendFile>(journal_path_, io::AppendFile::Create::kIfMissing);
  }
  writer_->write_at(static_cast<int64_t>(kHeaderBytes) + num_samples_ * layout_.sample_bytes(),
                    block.moments);
  writer_->sync();  // what the journal says is on the disk
  journal_->append(line_of(block));
  next_ = block.end;
  num_samples_ += std::ssize(block.samples);
}

void CachePart::finish() {
  KINORA_CHECK(next_ == end_, kInternal, "[cache] ", path_.string(), " ends at sample ", end_,
               ", got ", next_);
  const std::string header = header_of(layout_, num_samples_);
  const int64_t bytes = static_cast<int64_t>(kHeaderBytes) + num_samples_ * layout_.sample_bytes();
  if (std::filesystem::exists(path_)) {
    std::vector<std::byte> now(kHeaderBytes);
    const io::FileReader reader(path_);
    if (reader.size() == bytes) {
      reader.read_at(0, now);
      if (std::ranges::equal(now, std::as_bytes(std::span(header)))) {
        return;
      }
    }
  }
  writer_.reset();
  journal_.reset();
  io::FileWriter writer(path_, io::FileWriter::Create::kKeep);
  writer.write_at(0, std::as_bytes(std::span(header)));
  writer.sync();
  writer.close();
  std::filesystem::resize_file(path_, static_cast<uint64_t>(bytes));  // a torn block behind the end
  io::sync_folder(path_.parent_path());
}

CachePartRecord CachePart::read(const std::filesystem::path& folder, int64_t number) {
  CachePartRecord record;
  (void)for_each_entry(folder / (part_name(number) + ".jsonl"), [&](Entry&& entry) {
    std::ranges::move(entry.record.samples, std::back_inserter(record.samples));
    std::ranges::move(entry.record.left_out, std::back_inserter(record.left_out));
    return true;
  });
  return record;
}

}  // namespace kinora::data
