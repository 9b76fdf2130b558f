#include "kinora/data/cache_part.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <utility>

#include <nlohmann/json.hpp>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/io/file.h"

namespace kinora::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxJournalBytes = int64_t{1} << 32;

std::string part_name(int64_t number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "part-%05lld", static_cast<long long>(number));
  return text.data();
}

std::string line_of(const CacheBlock& block, const std::map<std::string, std::string>& checksums) {
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
    if (sample.num_references > 0) {
      entry["references"] = sample.num_references;
    }
    samples.push_back(std::move(entry));
  }
  Json left_out = Json::array();
  for (const LeftOut& one : block.left_out) {
    left_out.push_back({{"name", one.name}, {"reason", one.reason}});
  }
  Json line = {{"first", block.first}, {"end", block.end}};
  for (const auto& [name, checksum] : checksums) {
    line[name] = checksum;
  }
  line["samples"] = std::move(samples);
  line["left_out"] = std::move(left_out);
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Nothing for a line that is torn or not a journal's.
std::optional<CachePartLine> parse_line(const std::string& text) {
  const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    CachePartLine entry{.first = line.at("first").get<int64_t>(),
                        .end = line.at("end").get<int64_t>(),
                        .checksums = {},
                        .record = {}};
    for (const auto& [name, value] : line.items()) {
      if (value.is_string()) {
        entry.checksums[name] = value.get<std::string>();
      }
    }
    for (const Json& sample : line.at("samples")) {
      entry.record.samples.push_back(
          {.name = sample.at("name").get<std::string>(),
           .caption = sample.value("caption", std::string()),
           .label = sample.at("label").get<int64_t>(),
           .fps = sample.value("fps", 0.0F),
           .number = sample.value("number", int64_t{-1}),
           .pictured = {sample.value("height", int64_t{0}), sample.value("width", int64_t{0})},
           .num_references = sample.value("references", int64_t{0})});
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

/// Calls `see` with each line, until it returns false or a line is torn.
/// Returns the bytes of the lines that were seen and kept.
int64_t for_each_line(const std::filesystem::path& journal,
                      const std::function<bool(CachePartLine&&)>& see) {
  if (!std::filesystem::exists(journal)) {
    return 0;
  }
  const std::string text = io::read_text(journal, kMaxJournalBytes);
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    std::optional<CachePartLine> entry = parse_line(text.substr(begin, end - begin));
    if (!entry || !see(std::move(*entry))) {
      break;
    }
    begin = end + 1;
  }
  return static_cast<int64_t>(begin);
}

/// What lies in the rows of a part's files, in words.
std::string moments_text(const LatentLayout& layout) {
  return std::string("mean") + (layout.parts.std ? ", std" : "") +
         (layout.parts.mirrored ? ", mirrored mean" : "") +
         (layout.parts.mirrored && layout.parts.std ? ", mirrored std" : "");
}

std::string beside_text(const LatentLayout& layout) {
  const std::string text = layout.beside_text();
  return layout.parts.mirrored ? text + ", mirrored " + text : text;
}

}  // namespace

CachePart::CachePart(const std::filesystem::path& folder, int64_t number, int64_t first,
                     int64_t end, const LatentLayout& layout)
    : journal_path_(folder / (part_name(number) + ".jsonl")), end_(end), next_(first) {
  const std::string name = file_name(number);
  files_.push_back({.rows = RowFile(folder / name, "moments", layout.dtype, layout.moments_shape(),
                                    moments_text(layout)),
                    .of_block = &CacheBlock::moments,
                    .checksum = "checksum"});
  const auto add_file = [&](const char* tensor, DType dtype, std::vector<int64_t> row,
                            std::string parts, std::vector<std::byte> CacheBlock::*of_block) {
    files_.push_back({.rows = RowFile(folder / file_beside(name, tensor), tensor, dtype,
                                      std::move(row), std::move(parts)),
                      .of_block = of_block,
                      .checksum = tensor});
  };
  if (layout.has_beside()) {
    add_file(kBesideTensor, layout.dtype, layout.beside_shape(), beside_text(layout),
             &CacheBlock::beside);
  }
  if (layout.beside.mask) {
    add_file(kMasksTensor, DType::kU8, layout.mask_shape(), "mask", &CacheBlock::masks);
  }
  if (layout.beside.control) {
    add_file(kControlTensor, DType::kU8, layout.control_shape(), "control picture",
             &CacheBlock::control);
  }
  recover();
}

std::string CachePart::file_name(int64_t number) {
  return part_name(number) + ".safetensors";
}

bool CachePart::is_there(const File& file, const CachePartLine& line) const {
  const std::optional<std::vector<std::byte>> rows =
      file.rows.read(num_samples_, std::ssize(line.record.samples));
  const auto checksum = line.checksums.find(file.checksum);
  if (!rows || checksum == line.checksums.end()) {
    return false;
  }
  const bool is_whole = io::checksum(*rows) == checksum->second;
  if (!is_whole) {
    log_warn("[cache] ", file.rows.path().string(), ": the block of samples ", line.first, " to ",
             line.end - 1, " is damaged; it and what follows in this file are computed again");
  }
  return is_whole;
}

void CachePart::recover() {
  const int64_t kept = for_each_line(journal_path_, [this](CachePartLine&& line) {
    if (line.first != next_ || line.end <= line.first || line.end > end_ ||
        !std::ranges::all_of(files_, [&](const File& file) { return is_there(file, line); })) {
      return false;
    }
    next_ = line.end;
    num_samples_ += std::ssize(line.record.samples);
    return true;
  });
  if (std::filesystem::exists(journal_path_) &&
      std::cmp_not_equal(std::filesystem::file_size(journal_path_), kept)) {
    std::filesystem::resize_file(journal_path_, static_cast<uint64_t>(kept));
  }
}

void CachePart::add(const CacheBlock& block) {
  const auto count = std::ssize(block.samples);
  KINORA_CHECK(block.first == next_ && block.end > next_ && block.end <= end_, kInternal,
               "[cache] a block must begin at sample ", next_, ", got ", block.first, " to ",
               block.end);
  std::map<std::string, std::string> checksums;
  for (File& file : files_) {
    const std::vector<std::byte>& rows = block.*file.of_block;
    KINORA_CHECK(std::ssize(rows) == count * file.rows.row_bytes(), kInternal,
                 "[cache] a block must hold ", file.rows.row_bytes(), " bytes a sample for ",
                 file.rows.path().string(), ", got ", rows.size(), " bytes of ", count);
    file.rows.write(num_samples_, rows);  // what the journal says is on the disk
    checksums[file.checksum] = io::checksum(rows);
  }
  if (!journal_) {
    journal_ = std::make_unique<io::AppendFile>(journal_path_, io::AppendFile::Create::kIfMissing);
  }
  journal_->append(line_of(block, checksums));
  next_ = block.end;
  num_samples_ += count;
}

void CachePart::finish() {
  KINORA_CHECK(next_ == end_, kInternal, "[cache] ", journal_path_.string(), " ends at sample ",
               end_, ", got ", next_);
  journal_.reset();
  for (File& file : files_) {
    file.rows.finish(num_samples_);
  }
}

CachePartRecord CachePart::read(const std::filesystem::path& folder, int64_t number) {
  CachePartRecord record;
  (void)for_each_line(folder / (part_name(number) + ".jsonl"), [&](CachePartLine&& line) {
    std::ranges::move(line.record.samples, std::back_inserter(record.samples));
    std::ranges::move(line.record.left_out, std::back_inserter(record.left_out));
    return true;
  });
  return record;
}

}  // namespace kinora::data
