#include "kinora/checkpoint/shards.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <tuple>

#include "kinora/checkpoint/agreement.h"
#include "kinora/core/error.h"
#include "kinora/device/host_bytes.h"
#include "kinora/io/safetensors.h"

namespace kinora::checkpoint {
namespace {

namespace fs = std::filesystem;

// Of a file while its checksum is computed: the processor's caches hold it.
constexpr int64_t kReadBytes = int64_t{1} << 20;

std::string file_name(const std::string& role, Part stage, Part box, Part part) {
  std::string name = role;
  if (stage.count > 1) {
    name += "-stage-" + std::to_string(stage.index + 1) + "-of-" + std::to_string(stage.count);
  }
  if (box.count > 1) {
    name += "-box-" + std::to_string(box.index + 1) + "-of-" + std::to_string(box.count);
  }
  if (part.count > 1) {
    const int64_t number = part.index + 1;
    char place[64];
    std::snprintf(place, sizeof(place), "-%05ld-of-%05ld", static_cast<long>(number),
                  static_cast<long>(part.count));
    name += place;
  }
  return name + ".safetensors";
}

/// The bytes [begin, end) of a file.
struct Chunk {
  const Shard* shard;
  int64_t number;

  [[nodiscard]] int64_t begin() const { return number * shard->chunk_bytes; }
  [[nodiscard]] int64_t end() const {
    return std::min(begin() + shard->chunk_bytes, shard->num_bytes);
  }
};

std::string write_chunk(const ShardFile& file, const Chunk& chunk, io::FileWriter& writer,
                        StagingBuffer& buffer) {
  io::Checksum sum;
  const auto write = [&](int64_t offset, std::span<const std::byte> bytes) {
    sum.update(bytes);
    writer.write_at(offset, bytes);
  };
  if (chunk.begin() == 0) {
    write(0, std::as_bytes(std::span(file.header.data(), file.header.size())));
  }
  auto offset = static_cast<int64_t>(file.header.size());
  for (const at::Tensor& array : file.arrays) {
    const auto size = static_cast<int64_t>(array.nbytes());
    const int64_t begin = std::max(chunk.begin(), offset);
    const int64_t end = std::min(chunk.end(), offset + size);
    if (begin < end) {
      // Headers and chunks end where any type may.
      const auto element = static_cast<int64_t>(array.element_size());
      const at::Tensor piece = array.narrow(0, (begin - offset) / element, (end - begin) / element);
      const at::Tensor host = buffer.on_host(piece);
      write(begin, device::bytes_of(host));
    }
    offset += size;
  }
  writer.start_sync(chunk.begin(), chunk.end() - chunk.begin());
  return sum.hex();
}

void check_chunk(const fs::path& path, const Chunk& chunk) {
  const io::FileReader reader(path);
  reader.start_reading(chunk.begin(), chunk.end() - chunk.begin());
  io::Checksum sum;
  std::vector<std::byte> bytes(
      static_cast<size_t>(std::min(kReadBytes, chunk.end() - chunk.begin())));
  for (int64_t offset = chunk.begin(); offset < chunk.end();) {
    const auto piece =
        std::span(bytes).first(static_cast<size_t>(std::min(kReadBytes, chunk.end() - offset)));
    reader.read_at(offset, piece);
    sum.update(piece);
    offset += static_cast<int64_t>(piece.size());
  }
  const std::string& expected = chunk.shard->checksums[static_cast<size_t>(chunk.number)];
  KINORA_CHECK(sum.hex() == expected, kDamaged, "[checkpoint] ", path,
               " is damaged: the checksum of bytes ", chunk.begin(), " to ", chunk.end(),
               " must be ", expected, ", got ", sum.hex(),
               ". Hint: use another checkpoint of the run");
}

}  // namespace

std::optional<Part> part_of_rank(const optim::Arena& arena, const comm::Group& world) {
  const optim::Sharding& sharding = arena.options().sharding;
  const Part slice =
      sharding.divides() ? Part{sharding.group.rank(), sharding.group.size()} : Part{0, 1};
  const comm::Group& tensor = arena.options().tensor;
  const comm::Group& pipeline = arena.options().pipeline;
  const std::vector<std::string> slices = gather_texts(
      world, std::to_string(slice.index) + " of boxes " + std::to_string(tensor.rank()) +
                 " of stage " + std::to_string(pipeline.rank()));
  const std::string& mine = slices[static_cast<size_t>(world.rank())];
  const int64_t replicas = std::count(slices.begin(), slices.end(), mine);
  const int64_t replica = std::count(slices.begin(), slices.begin() + world.rank(), mine);
  KINORA_CHECK(replicas * slice.count * tensor.size() * pipeline.size() == world.size(), kInternal,
               "[checkpoint] each of ", slice.count, " slices of ", tensor.size(), " boxes of ",
               pipeline.size(), " stages must be owned by equally many of ", world.size(),
               " ranks, got ", replicas, " of slice ", slice.index);
  const bool coded = arena.options().moments == kernels::MomentFormat::k8Bit;
  const int64_t block = coded ? kernels::kCodeBlock : 1;  // of which every part has whole ones
  const int64_t parts = slice.count * replicas;
  if (optim::kBucketAlignment / block % parts == 0) {
    return Part{slice.index * replicas + replica, parts};
  }
  return replica == 0 ? std::optional(slice) : std::nullopt;
}

std::vector<optim::Bucket> buckets_of_stages(const optim::Arena& arena, const comm::Group& world) {
  std::vector<optim::Bucket> buckets;
  for (const optim::Bucket& bucket : arena.buckets()) {
    optim::Bucket named;
    named.name = bucket.name;
    named.numel = bucket.numel;
    named.slots = bucket.slots;
    buckets.push_back(std::move(named));
  }
  const comm::Group& pipeline = arena.options().pipeline;
  if (pipeline.size() == 1) {
    return buckets;
  }
  const std::vector<optim::Bucket> first_stage = buckets;
  std::erase_if(
      buckets, [](const optim::Bucket& bucket) { return !bucket.slots.front().stage.has_value(); });
  const std::vector<std::string> texts = gather_texts(world, to_json(buckets));
  // Rank 0 of the world is of stage 0, the pipeline is the slowest axis.
  std::vector<optim::Bucket> all = first_stage;
  for (int64_t stage = 1; stage < pipeline.size(); ++stage) {
    const auto rank = static_cast<size_t>(stage * (world.size() / pipeline.size()));
    for (optim::Bucket& bucket : parse_buckets(texts[rank], arena.options().tensor.size())) {
      all.push_back(std::move(bucket));
    }
  }
  return all;
}

std::vector<ShardFile> shard_files(const optim::Arena& arena, Part part) {
  const Part stage = {arena.options().pipeline.rank(), arena.options().pipeline.size()};
  std::vector<ShardFile> files;
  for (const optim::Role role : arena.state_roles()) {
    ShardFile file;
    std::vector<io::SafetensorsSpec> specs;
    int64_t size = 0;
    for (const optim::Bucket& bucket : arena.buckets()) {
      if (stage.index > 0 && !bucket.slots.front().stage) {
        continue;
      }
      const int64_t size_of_part = bucket.numel / part.count;
      const int64_t begin = bucket.place_of(role, size_of_part * part.index);
      const int64_t numel = bucket.place_of(role, size_of_part * (part.index + 1)) - begin;
      const at::Tensor array = bucket.tensor(role).narrow(0, begin, numel);
      file.arrays.push_back(array);
      specs.push_back(
          {.name = bucket.name, .dtype = device::dtype_of(array.scalar_type()), .shape = {numel}});
      size += static_cast<int64_t>(array.nbytes());
    }
    file.header = io::safetensors_header(specs);
    const Part box = {arena.options().tensor.rank(), arena.options().tensor.size()};
    file.shard = {.file = file_name(optim::to_string(role), stage, box, part),
                  .role = optim::to_string(role),
                  .part = part,
                  .box = box,
                  .stage = stage,
                  .num_bytes = static_cast<int64_t>(file.header.size()) + size,
                  .chunk_bytes = kChunkBytes,
                  .checksums = {}};
    files.push_back(std::move(file));
  }
  return files;
}

void write_shards(const fs::path& folder, std::vector<ShardFile>& files, Staging& staging) {
  std::vector<std::unique_ptr<io::FileWriter>> writers;
  std::vector<std::pair<size_t, Chunk>> chunks;  // with the number of the file
  for (size_t i = 0; i < files.size(); ++i) {
    Shard& shard = files[i].shard;
    writers.push_back(
        std::make_unique<io::FileWriter>(folder / shard.file, io::FileWriter::Create::kNew));
    const int64_t count = Shard::num_chunks(shard.num_bytes, shard.chunk_bytes);
    shard.checksums.resize(static_cast<size_t>(count));
    for (int64_t number = 0; number < count; ++number) {
      chunks.push_back({i, {&shard, number}});
    }
  }
  // The files take turns, since the system lets one thread at a time write to a file.
  std::stable_sort(chunks.begin(), chunks.end(), [](const auto& left, const auto& right) {
    return left.second.number < right.second.number;
  });
  staging.for_each(static_cast<int64_t>(chunks.size()), [&](int64_t i, StagingBuffer& buffer) {
    const auto& [file, chunk] = chunks[static_cast<size_t>(i)];
    files[file].shard.checksums[static_cast<size_t>(chunk.number)] =
        write_chunk(files[file], chunk, *writers[file], buffer);
  });
  staging.for_each(static_cast<int64_t>(writers.size()), [&](int64_t i, StagingBuffer&) {
    writers[static_cast<size_t>(i)]->sync();
    writers[static_cast<size_t>(i)]->close();
  });
  io::sync_folder(folder);
}

namespace {

/// Of the boxes of one number, of one stage.
std::vector<Shard> shards_of(const Manifest& manifest, const fs::path& checkpoint,
                             const std::string& role, int64_t box, int64_t stage) {
  std::vector<Shard> shards;
  std::copy_if(manifest.shards.begin(), manifest.shards.end(), std::back_inserter(shards),
               [&](const Shard& shard) {
                 return shard.role == role && shard.box.index == box && shard.stage.index == stage;
               });
  KINORA_CHECK(!shards.empty(), kIo, "[checkpoint] ", checkpoint, " has no ", role);
  std::sort(shards.begin(), shards.end(), [](const Shard& left, const Shard& right) {
    return left.part.index < right.part.index;
  });
  const auto count = static_cast<int64_t>(shards.size());
  for (int64_t i = 0; i < count; ++i) {
    const auto& [file, of_role, part, of_box, of_stage, bytes, chunk, sums] =
        shards[static_cast<size_t>(i)];
    KINORA_CHECK(part.index == i && part.count == count && of_box.count == manifest.num_boxes &&
                     of_stage.count == manifest.num_stages,
                 kDamaged, "[checkpoint] ", checkpoint, " must have each part of ", role,
                 " once, got ", count, " files, of which ", file, " is part ", part.index + 1,
                 " of ", part.count);
  }
  return shards;
}

}  // namespace

std::vector<Shard> shards_of(const Manifest& manifest, const fs::path& checkpoint,
                             const std::string& role) {
  std::vector<Shard> all;
  for (int64_t stage = 0; stage < manifest.num_stages; ++stage) {
    for (int64_t box = 0; box < manifest.num_boxes; ++box) {
      const std::vector<Shard> shards = shards_of(manifest, checkpoint, role, box, stage);
      all.insert(all.end(), shards.begin(), shards.end());
    }
  }
  return all;
}

void check_sizes(const fs::path& checkpoint, const std::vector<Shard>& shards) {
  for (const Shard& shard : shards) {
    const fs::path path = checkpoint / shard.file;
    KINORA_CHECK(fs::exists(path), kDamaged, "[checkpoint] ", path,
                 " is missing. Hint: use another checkpoint of the run");
    const io::FileReader file(path);
    KINORA_CHECK(file.size() == shard.num_bytes, kDamaged, "[checkpoint] ", file.path(),
                 " must have ", shard.num_bytes, " bytes, got ", file.size(),
                 ". Hint: use another checkpoint of the run");
  }
}

void check_content(const fs::path& checkpoint, std::vector<Shard> shards, Part share,
                   Staging& staging) {
  // By part: so as many ranks as wrote a checkpoint each compare what they will read.
  std::stable_sort(shards.begin(), shards.end(), [](const Shard& left, const Shard& right) {
    return left.part.index < right.part.index;
  });
  std::vector<Chunk> chunks;
  for (const Shard& shard : shards) {
    const auto count = static_cast<int64_t>(shard.checksums.size());
    for (int64_t number = 0; number < count; ++number) {
      chunks.push_back({&shard, number});
    }
  }
  const auto count = static_cast<int64_t>(chunks.size());
  const int64_t begin = count * share.index / share.count;
  const int64_t end = count * (share.index + 1) / share.count;
  staging.for_each(end - begin, [&](int64_t i, StagingBuffer&) {
    const Chunk& chunk = chunks[static_cast<size_t>(begin + i)];
    check_chunk(checkpoint / chunk.shard->file, chunk);
  });
}

namespace {

/// What a role's arrays may be besides fp32.
DType type_in_8_or_16_bits(optim::Role role) {
  switch (role.kind) {
    case optim::Role::Kind::kMaster:
      return DType::kBF16;
    case optim::Role::Kind::kExpAvg:
    case optim::Role::Kind::kExpAvgSq:
      return DType::kU8;
    default:
      return DType::kF32;
  }
}

}  // namespace

RoleReader::RoleReader(const fs::path& checkpoint, const Manifest& manifest, optim::Role role,
                       int64_t box) {
  part_begins_.resize(manifest.buckets.size());
  types_.resize(manifest.buckets.size(), at::kFloat);
  first_file_.resize(manifest.buckets.size());
  for (int64_t stage = 0; stage < manifest.num_stages; ++stage) {
    add_stage(checkpoint, manifest, role,
              shards_of(manifest, checkpoint, optim::to_string(role), box, stage), stage);
  }
}

void RoleReader::add_stage(const fs::path& checkpoint, const Manifest& manifest, optim::Role role,
                           const std::vector<Shard>& shards, int64_t stage) {
  const auto count = static_cast<int64_t>(shards.size());
  const size_t first_file = files_.size();
  std::vector<size_t> own;  // the stage's buckets
  for (size_t b = 0; b < manifest.buckets.size(); ++b) {
    const optim::Bucket& bucket = manifest.buckets[b];
    if (stage_of(bucket) != stage) {
      continue;
    }
    KINORA_CHECK(bucket.numel % (role.elements_each() * count) == 0, kDamaged, "[checkpoint] ",
                 checkpoint, ": the ", bucket.numel, " elements of bucket ", bucket.name,
                 " do not divide into ", count, " parts");
    for (int64_t part = 0; part <= count; ++part) {
      part_begins_[b].push_back(bucket.count_of(role, bucket.numel / count * part));
    }
    first_file_[b] = first_file;
    own.push_back(b);
  }
  for (size_t part = 0; part < shards.size(); ++part) {
    const fs::path path = checkpoint / shards[part].file;
    const auto header = io::SafetensorsFile::open(path);
    File& file = files_.emplace_back();
    file.reader = std::make_unique<io::FileReader>(path);
    file.offsets.resize(manifest.buckets.size());
    for (const size_t b : own) {
      const int64_t numel = part_begins_[b][part + 1] - part_begins_[b][part];
      const io::SafetensorsTensor* found = header.find(manifest.buckets[b].name);
      const bool first = part == 0;
      const bool is_known = found != nullptr && (found->dtype == DType::kF32 ||
                                                 found->dtype == type_in_8_or_16_bits(role));
      KINORA_CHECK(is_known && found->shape == std::vector<int64_t>{numel} &&
                       (first || device::dtype_of(types_[b]) == found->dtype),
                   kDamaged, "[checkpoint] ", path, " must hold bucket ", manifest.buckets[b].name,
                   ", ", to_string(first ? DType::kF32 : device::dtype_of(types_[b])), " [", numel,
                   "]");
      types_[b] = device::scalar_type(found->dtype);
      // The data end with the last tensor, and the file with the data.
      const auto& last = header.tensors().back().data;
      file.offsets[b] = file.reader->size() - (last.data() + last.size() - found->data.data());
    }
  }
}

void RoleReader::read(size_t bucket, int64_t begin, const at::Tensor& out) const {
  auto* bytes = static_cast<std::byte*>(out.mutable_data_ptr());
  const auto element = static_cast<int64_t>(out.element_size());
  const int64_t end = begin + out.numel();
  const std::vector<int64_t>& begins = part_begins_[bucket];
  while (begin < end) {
    const auto next = std::ranges::upper_bound(begins, begin);
    const int64_t first = *std::prev(next);
    const int64_t count = std::min(end, *next) - begin;
    const auto size = static_cast<size_t>(count * element);
    const File& file = files_[first_file_[bucket] + static_cast<size_t>(next - begins.begin() - 1)];
    file.reader->read_at(file.offsets[bucket] + (begin - first) * element, {bytes, size});
    bytes += size;
    begin += count;
  }
}

std::vector<RoleReader> readers_of(const fs::path& checkpoint, const Manifest& manifest,
                                   optim::Role role) {
  std::vector<RoleReader> readers;
  for (int64_t box = 0; box < manifest.num_boxes; ++box) {
    readers.emplace_back(checkpoint, manifest, role, box);
  }
  return readers;
}

at::Tensor read_whole(const std::vector<RoleReader>& boxes, const Manifest& manifest, size_t bucket,
                      const optim::Slot& slot, optim::Role role) {
  std::vector<at::Tensor> parts;
  const size_t count = slot.box ? boxes.size() : 1;
  for (size_t i = 0; i < count; ++i) {
    const at::Tensor elements =
        at::empty({c10::multiply_integers(slot.shape)}, boxes[i].type(bucket));
    boxes[i].read(bucket, manifest.buckets[bucket].count_of(role, slot.offset), elements);
    parts.push_back(optim::in_shape(elements, slot));
  }
  return slot.box ? slot.box->join(parts) : parts.front();
}

namespace {

/// Elements that lie one behind the other in a file and in memory.
struct Run {
  int64_t from = 0;  // in the box that was written
  int64_t to = 0;    // in what is read
  int64_t size = 0;
};

/// Of elements [begin, begin + count) of a target: the runs in each box, in order.
std::vector<std::vector<Run>> runs_of(const BoxTarget& target, int64_t begin, int64_t count) {
  std::vector<std::vector<Run>> runs(target.boxes->size());
  for (int64_t to = 0; to < count;) {
    nn::BoxRun here{.whole = begin + to, .size = count - to};
    if (target.to->box) {
      here = target.to->box->run_of_own(begin + to);
    }
    nn::BoxRun there{.own = here.whole, .size = here.size};
    if (target.from->box) {
      there = target.from->box->run_of_whole(here.whole);
    }
    const int64_t size = std::min({here.size, there.size, count - to});
    runs[static_cast<size_t>(there.index)].push_back({there.own, to, size});
    to += size;
  }
  return runs;
}

/// Runs that lie close together come from the file at once: there may be one a row of a matrix.
void read_runs(const RoleReader& reader, size_t bucket, int64_t offset,
               const std::vector<Run>& runs, const at::Tensor& host) {
  constexpr int64_t kMostGap = int64_t{64} << 10;  // bytes that are read in vain
  constexpr int64_t kMostSpan = int64_t{4} << 20;  // bytes: the processor's caches hold them
  const auto element = static_cast<int64_t>(host.element_size());
  at::Tensor span;
  for (size_t first = 0; first < runs.size();) {
    const int64_t begin = runs[first].from;
    int64_t end = begin + runs[first].size;
    size_t next = first + 1;
    while (next < runs.size() && (runs[next].from - end) * element <= kMostGap &&
           (runs[next].from + runs[next].size - begin) * element <= kMostSpan) {
      end = runs[next].from + runs[next].size;
      ++next;
    }
    if (next == first + 1) {
      reader.read(bucket, offset + begin, host.narrow(0, runs[first].to, runs[first].size));
    } else {
      if (!span.defined()) {
        span = at::empty({kMostSpan / element}, host.scalar_type());
      }
      reader.read(bucket, offset + begin, span.narrow(0, 0, end - begin));
      const auto* source = static_cast<const std::byte*>(span.const_data_ptr());
      auto* target = static_cast<std::byte*>(host.mutable_data_ptr());
      for (size_t i = first; i < next; ++i) {
        std::memcpy(target + runs[i].to * element, source + (runs[i].from - begin) * element,
                    static_cast<size_t>(runs[i].size * element));
      }
    }
    first = next;
  }
}

at::ScalarType type_of(const ReadTarget& target) {
  return target.reader->type(target.bucket);
}

at::ScalarType type_of(const BoxTarget& target) {
  return target.boxes->front().type(target.bucket);
}

/// The target's elements from `first` on, as many as `host` has.
void read(const ReadTarget& target, int64_t first, const at::Tensor& host) {
  target.reader->read(target.bucket, target.begin + first, host);
}

void read(const BoxTarget& target, int64_t first, const at::Tensor& host) {
  const std::vector<std::vector<Run>> runs = runs_of(target, target.begin + first, host.numel());
  for (size_t box = 0; box < runs.size(); ++box) {
    read_runs((*target.boxes)[box], target.bucket, target.from->offset, runs[box], host);
  }
}

template <typename Target>
void read_in_pieces(const std::vector<Target>& targets, Staging& staging) {
  struct Piece {
    const Target* target;
    int64_t first;  // of the target's values
    int64_t count;
  };
  std::vector<Piece> pieces;
  for (const Target& target : targets) {
    constexpr int64_t kElements = kChunkBytes / static_cast<int64_t>(sizeof(float));
    for (int64_t first = 0; first < target.values.numel(); first += kElements) {
      pieces.push_back({&target, first, std::min(kElements, target.values.numel() - first)});
    }
  }
  staging.for_each(static_cast<int64_t>(pieces.size()), [&](int64_t i, StagingBuffer& buffer) {
    const auto& [target, first, count] = pieces[static_cast<size_t>(i)];
    const at::Tensor values = target->values.narrow(0, first, count);
    const at::Tensor host = buffer.space_for(values, type_of(*target));
    read(*target, first, host);
    buffer.put(host, values);
  });
}

}  // namespace

void read_into(const std::vector<ReadTarget>& targets, Staging& staging) {
  read_in_pieces(targets, staging);
}

void read_into(const std::vector<BoxTarget>& targets, Staging& staging) {
  read_in_pieces(targets, staging);
}

}  // namespace kinora::checkpoint
