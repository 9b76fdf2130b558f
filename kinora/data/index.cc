#include "kinora/data/index.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <system_error>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/io/file.h"

// The file: Header, `count` Records, `num_slots` uint32 of the hash table, `text_bytes` of names
// and causes. A slot holds 1 + the place of a record, or 0; a name is looked for from the slot of
// its hash on.

namespace kinora::data {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::array<char, 8> kMagic = {'K', 'I', 'N', 'O', 'R', 'A', 'I', 'X'};
constexpr uint32_t kIndexVersion = 1;

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kIndexVersion;
  uint32_t record_bytes = 0;
  uint64_t count = 0;
  uint64_t num_slots = 0;  // a power of two, above count
  uint64_t text_bytes = 0;
  uint64_t checksum = 0;  // of what follows the header
  uint64_t unused = 0;
  uint64_t header_checksum = 0;  // of what stands before it
};
static_assert(sizeof(Header) == 64);

struct Record {
  uint64_t stamp = 0;
  uint64_t checksum = 0;
  uint64_t name_begin = 0;  // in the texts
  uint64_t cause_begin = 0;
  uint32_t name_bytes = 0;
  uint32_t cause_bytes = 0;
  uint32_t height = 0;
  uint32_t width = 0;
  uint32_t num_frames = 0;
  uint32_t caption_length = 0;
  float fps = 0.0F;
  uint32_t is_checked = 0;
};
static_assert(sizeof(Record) == 64);

uint64_t hash_of(std::string_view name) {
  return io::checksum_value(std::as_bytes(std::span(name)));
}

uint64_t checksum_of(const Header& header) {
  return io::checksum_value(
      std::as_bytes(std::span(&header, 1)).first(offsetof(Header, header_checksum)));
}

uint32_t to_u32(int64_t value) {
  return static_cast<uint32_t>(std::clamp<int64_t>(value, 0, UINT32_MAX));
}

// At most two thirds of the slots are taken.
uint64_t slots_for(uint64_t count) {
  return std::bit_ceil(count + count / 2 + 1);
}

IndexEntry entry_of(const Record& record, std::string_view texts) {
  return {.facts = {.height = record.height,
                    .width = record.width,
                    .num_frames = record.num_frames,
                    .fps = record.fps,
                    .caption_length = record.caption_length,
                    .checksum = record.checksum},
          .cause = texts.substr(record.cause_begin, record.cause_bytes),
          .stamp = record.stamp,
          .is_checked = record.is_checked != 0};
}

// Goes through the places where `name` may be; `use` gets each record's place, or none at the end,
// and says whether to stop.
template <typename Use>
void probe(std::span<const uint32_t> slots, std::string_view name, const Use& use) {
  const uint64_t mask = slots.size() - 1;
  for (uint64_t slot = hash_of(name) & mask, tries = 0; tries <= mask;
       slot = (slot + 1) & mask, ++tries) {
    if (use(slot)) {
      return;
    }
  }
}

}  // namespace

struct Index::State {
  std::optional<io::MappedFile> file;
  std::vector<std::byte> own;  // without a file
  std::span<const Record> records = {};
  std::span<const uint32_t> slots = {};
  std::string_view texts = {};

  explicit State(const std::filesystem::path& path) : file(path) {
    map(file->bytes(), path.string());
  }
  explicit State(std::vector<std::byte> bytes) : own(std::move(bytes)) { map(own, "new"); }

  [[nodiscard]] std::string_view name(const Record& record) const {
    return texts.substr(record.name_begin, record.name_bytes);
  }

  void map(std::span<const std::byte> bytes, const std::string& path) {
    Header header;
    KINORA_CHECK(bytes.size() >= sizeof(Header), kIo, "[index] ", path,
                 " must be an index, got only ", bytes.size(), " bytes");
    std::memcpy(&header, bytes.data(), sizeof(Header));
    KINORA_CHECK(header.magic == kMagic, kIo, "[index] ", path,
                 " must be an index, got something else");
    KINORA_CHECK(header.version == kIndexVersion && header.record_bytes == sizeof(Record), kIo,
                 "[index] ", path, " must be of version ", kIndexVersion, ", got ", header.version);
    KINORA_CHECK(checksum_of(header) == header.header_checksum, kIo, "[index] ", path,
                 " must be whole, got a damaged header");
    const uint64_t rest = bytes.size() - sizeof(Header);
    const bool fits = header.count < UINT32_MAX && header.num_slots == slots_for(header.count) &&
                      header.text_bytes <= rest &&
                      rest - header.text_bytes ==
                          header.count * sizeof(Record) + header.num_slots * sizeof(uint32_t);
    const auto content = bytes.subspan(sizeof(Header));
    KINORA_CHECK(fits && io::checksum_value(content) == header.checksum, kIo, "[index] ", path,
                 " must be whole, got damaged content");
    records = {reinterpret_cast<const Record*>(content.data()), header.count};
    slots = {reinterpret_cast<const uint32_t*>(records.data() + records.size()), header.num_slots};
    texts = {reinterpret_cast<const char*>(slots.data() + slots.size()), header.text_bytes};
    const auto is_inside = [this](uint64_t begin, uint32_t size) {
      return begin <= texts.size() && size <= texts.size() - begin;
    };
    bool is_sound = true;
    for (const Record& record : records) {
      is_sound = is_sound && is_inside(record.name_begin, record.name_bytes) &&
                 is_inside(record.cause_begin, record.cause_bytes);
    }
    for (const uint32_t slot : slots) {
      is_sound = is_sound && slot <= records.size();
    }
    KINORA_CHECK(is_sound, kIo, "[index] ", path, " must be whole, got places outside of it");
  }
};

Index::Index() = default;
Index::Index(Index&&) noexcept = default;
Index& Index::operator=(Index&&) noexcept = default;
Index::~Index() = default;

Index Index::open(const std::filesystem::path& path) {
  Index index;
  index.state_ = std::make_unique<State>(path);
  return index;
}

Index Index::of_bytes(std::vector<std::byte> bytes) {
  Index index;
  index.state_ = std::make_unique<State>(std::move(bytes));
  return index;
}

Index Index::open_or_empty(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    return {};
  }
  try {
    return open(path);
  } catch (const Error& error) {
    log_warn("[index] made anew: ", error.what());
    return {};
  }
}

int64_t Index::size() const {
  return state_ ? std::ssize(state_->records) : 0;
}

std::string_view Index::name(int64_t place) const {
  return state_->name(state_->records[static_cast<size_t>(place)]);
}

IndexEntry Index::entry(int64_t place) const {
  return entry_of(state_->records[static_cast<size_t>(place)], state_->texts);
}

std::optional<IndexEntry> Index::find(std::string_view name) const {
  std::optional<IndexEntry> found;
  if (!state_) {
    return found;
  }
  probe(state_->slots, name, [&](uint64_t slot) {
    const uint32_t place = state_->slots[slot];
    if (place != 0 && state_->name(state_->records[place - 1]) == name) {
      found = entry(place - 1);
    }
    return place == 0 || found;
  });
  return found;
}

struct IndexWriter::State {
  std::vector<Record> records;
  std::vector<uint32_t> slots = std::vector<uint32_t>(slots_for(0));
  std::string texts;

  // The slot of `name`: free, or that of the record that has it.
  [[nodiscard]] uint64_t slot_of(std::string_view name) const {
    uint64_t found = 0;
    probe(slots, name, [&](uint64_t slot) {
      found = slot;
      const uint32_t place = slots[slot];
      return place == 0 || name_of(records[place - 1]) == name;
    });
    return found;
  }

  [[nodiscard]] std::string_view name_of(const Record& record) const {
    return std::string_view(texts).substr(record.name_begin, record.name_bytes);
  }

  void add(std::string_view name, const IndexEntry& entry) {
    if (slots[slot_of(name)] != 0) {
      return;
    }
    Record record{.stamp = entry.stamp,
                  .checksum = entry.facts.checksum,
                  .name_begin = texts.size(),
                  .cause_begin = 0,
                  .name_bytes = static_cast<uint32_t>(name.size()),
                  .cause_bytes = static_cast<uint32_t>(entry.cause.size()),
                  .height = to_u32(entry.facts.height),
                  .width = to_u32(entry.facts.width),
                  .num_frames = to_u32(entry.facts.num_frames),
                  .caption_length = to_u32(entry.facts.caption_length),
                  .fps = entry.facts.fps,
                  .is_checked = entry.is_checked ? 1U : 0U};
    texts += name;
    if (!entry.cause.empty()) {
      record.cause_begin = texts.size();
      texts += entry.cause;
    }
    records.push_back(record);
    if (slots_for(records.size()) != slots.size()) {
      grow();
    } else {
      slots[slot_of(name)] = static_cast<uint32_t>(records.size());
    }
  }

 private:
  void grow() {
    slots.assign(slots_for(records.size()), 0);
    for (size_t i = 0; i < records.size(); ++i) {
      slots[slot_of(name_of(records[i]))] = static_cast<uint32_t>(i + 1);
    }
  }
};

IndexWriter::IndexWriter() : state_(std::make_unique<State>()) {}
IndexWriter::~IndexWriter() = default;

void IndexWriter::add(std::string_view name, const IndexEntry& entry) {
  state_->add(name, entry);
}

std::vector<std::byte> IndexWriter::bytes(const Index& rest) const {
  State merged;
  if (rest.size() > 0) {
    merged = *state_;
    for (int64_t i = 0; i < rest.size(); ++i) {
      merged.add(rest.name(i), rest.entry(i));
    }
  }
  const State& s = rest.size() > 0 ? merged : *state_;
  const auto records = std::as_bytes(std::span(s.records));
  const auto slots = std::as_bytes(std::span(s.slots));
  const auto texts = std::as_bytes(std::span(s.texts));
  std::vector<std::byte> bytes(sizeof(Header));
  bytes.reserve(sizeof(Header) + records.size() + slots.size() + texts.size());
  for (const std::span<const std::byte> part : {records, slots, texts}) {
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  Header header{.record_bytes = sizeof(Record),
                .count = s.records.size(),
                .num_slots = s.slots.size(),
                .text_bytes = s.texts.size(),
                .checksum = io::checksum_value(std::span(bytes).subspan(sizeof(Header)))};
  header.header_checksum = checksum_of(header);
  std::memcpy(bytes.data(), &header, sizeof(Header));
  return bytes;
}

void IndexWriter::write(const std::filesystem::path& path, const Index& rest) const {
  if (path.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    KINORA_CHECK(!error, kIo, "[index] cannot make the folder ", path.parent_path().string(), ": ",
                 error.message());
  }
  io::write_file_atomic(path, bytes(rest));
}

}  // namespace kinora::data
