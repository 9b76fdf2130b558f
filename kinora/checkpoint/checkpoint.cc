#include "kinora/checkpoint/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "kinora/checkpoint/manifest.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/io/file.h"
#include "kinora/io/safetensors.h"
#include "kinora/ops/host_bytes.h"

namespace kinora::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kUnfinishedPrefix = ".unfinished-";

Shard write_role(const fs::path& folder, const optim::Arena& arena, optim::Role role) {
  const std::string file = optim::to_string(role) + ".safetensors";
  std::vector<io::SafetensorsSpec> specs;
  for (const optim::Bucket& bucket : arena.buckets()) {
    specs.push_back({.name = bucket.name, .dtype = DType::kF32, .shape = {bucket.numel}});
  }
  io::SafetensorsWriter writer(folder / file, std::move(specs));
  for (const optim::Bucket& bucket : arena.buckets()) {
    const at::Tensor host = bucket.tensor(role).to(at::kCPU);
    writer.write(bucket.name, ops::bytes_of(host));
  }
  const io::SafetensorsSummary summary = writer.finish();
  return {.file = file,
          .role = optim::to_string(role),
          .num_bytes = summary.num_bytes,
          .checksum = summary.checksum};
}

std::vector<std::pair<const char*, at::Tensor*>> arrays_of(ops::Fp8State& state) {
  return {{"amax", &state.amax}, {"history", &state.history}, {"scale", &state.scale}};
}

Shard write_fp8(const fs::path& folder, ops::Fp8State state) {
  const std::string file = std::string(kFp8Role) + ".safetensors";
  std::vector<io::SafetensorsSpec> specs;
  for (const auto& [name, array] : arrays_of(state)) {
    specs.push_back({.name = name, .dtype = DType::kF32, .shape = array->sizes().vec()});
  }
  io::SafetensorsWriter writer(folder / file, std::move(specs));
  for (const auto& [name, array] : arrays_of(state)) {
    writer.write(name, ops::bytes_of(*array));
  }
  const io::SafetensorsSummary summary = writer.finish();
  return {
      .file = file, .role = kFp8Role, .num_bytes = summary.num_bytes, .checksum = summary.checksum};
}

void check_space(const fs::path& folder, const optim::Arena& arena) {
  int64_t needed = 16 << 20;  // headers and manifest, generously
  for (const optim::Role role : arena.state_roles()) {
    needed += arena.bytes(role);
  }
  const int64_t available = io::free_space(folder);
  KINORA_CHECK(available >= needed, kIo, "[checkpoint] ", folder, " has ", human_bytes(available),
               " free, but a checkpoint needs ", human_bytes(needed),
               ". Hint: free some, or lower checkpoint.keep_last");
}

const Shard& find_shard(const Manifest& manifest, const fs::path& checkpoint, optim::Role role) {
  const std::string name = optim::to_string(role);
  for (const Shard& shard : manifest.shards) {
    if (shard.role == name) {
      return shard;
    }
  }
  throw_error(ErrorKind::kIo, "[checkpoint] ", checkpoint, " has no ", name);
}

/// Opens a shard and compares its checksum.
io::SafetensorsFile open_shard(const fs::path& checkpoint, const Shard& shard) {
  const fs::path path = checkpoint / shard.file;
  const io::MappedFile mapped(path);
  const auto size = static_cast<int64_t>(mapped.bytes().size());
  KINORA_CHECK(size == shard.num_bytes, kIo, "[checkpoint] ", path, " must have ", shard.num_bytes,
               " bytes, got ", size, ". Hint: use another checkpoint of the run");
  const std::string checksum = io::checksum(mapped.bytes());
  KINORA_CHECK(checksum == shard.checksum, kIo, "[checkpoint] ", path,
               " is damaged: its checksum must be ", shard.checksum, ", got ", checksum,
               ". Hint: use another checkpoint of the run");
  return io::SafetensorsFile::open(path);
}

void check_layout(const Manifest& manifest, const fs::path& checkpoint, const optim::Arena& arena) {
  const auto& expected = arena.buckets();
  bool same = manifest.buckets.size() == expected.size();
  for (size_t b = 0; same && b < expected.size(); ++b) {
    const optim::Bucket& bucket = manifest.buckets[b];
    same = bucket.name == expected[b].name && bucket.numel == expected[b].numel &&
           bucket.slots.size() == expected[b].slots.size();
    for (size_t s = 0; same && s < bucket.slots.size(); ++s) {
      same = bucket.slots[s].path == expected[b].slots[s].path &&
             bucket.slots[s].shape == expected[b].slots[s].shape &&
             bucket.slots[s].offset == expected[b].slots[s].offset;
    }
    KINORA_CHECK(same, kIo, "[checkpoint] ", checkpoint, " is of another model: bucket ",
                 expected[b].name, " differs. Hint: model.* must be as when it was saved");
  }
  KINORA_CHECK(same, kIo, "[checkpoint] ", checkpoint, " is of another model: it has ",
               manifest.buckets.size(), " buckets, this model ", expected.size(),
               ". Hint: model.* must be as when it was saved");
}

const io::SafetensorsTensor& find_bucket(const io::SafetensorsFile& file,
                                         const optim::Bucket& bucket) {
  const io::SafetensorsTensor* found = file.find(bucket.name);
  KINORA_CHECK(found != nullptr && found->dtype == DType::kF32 &&
                   found->shape == std::vector<int64_t>{bucket.numel},
               kIo, "[checkpoint] ", file.path(), " must hold bucket ", bucket.name, ", F32 [",
               bucket.numel, "]");
  return *found;
}

at::Tensor read_bucket(const io::SafetensorsFile& file, const optim::Bucket& bucket) {
  const io::SafetensorsTensor& found = find_bucket(file, bucket);
  return ops::tensor_from_bytes(found.dtype, found.shape, found.data);
}

/// Nothing if the checkpoint has none.
std::optional<ops::Fp8State> read_fp8(const Manifest& manifest, const fs::path& checkpoint) {
  const auto shard =
      std::find_if(manifest.shards.begin(), manifest.shards.end(),
                   [](const Shard& candidate) { return candidate.role == kFp8Role; });
  if (shard == manifest.shards.end()) {
    return std::nullopt;
  }
  const io::SafetensorsFile file = open_shard(checkpoint, *shard);
  ops::Fp8State state;
  for (const auto& [name, array] : arrays_of(state)) {
    if (const io::SafetensorsTensor* found = file.find(name)) {
      *array = ops::tensor_from_bytes(found->dtype, found->shape, found->data);
    }
  }
  const std::string fault = ops::fault_of(state);
  KINORA_CHECK(fault.empty(), kIo, "[checkpoint] ", file.path(), ": ", fault,
               ". Hint: use another checkpoint of the run");
  return state;
}

}  // namespace

fs::path step_folder(const fs::path& folder, int64_t step) {
  return folder / (std::string(kStepPrefix) + std::to_string(step));
}

std::optional<int64_t> step_of(const fs::path& checkpoint) {
  const std::string name = checkpoint.filename().string();
  if (!name.starts_with(kStepPrefix)) {
    return std::nullopt;
  }
  int64_t step = 0;
  const char* first = name.data() + kStepPrefix.size();
  const char* last = name.data() + name.size();
  const auto parsed = std::from_chars(first, last, step);
  if (parsed.ec != std::errc() || parsed.ptr != last || step < 0) {
    return std::nullopt;
  }
  return step;
}

std::vector<fs::path> list_checkpoints(const fs::path& folder) {
  std::vector<fs::path> found;
  if (fs::is_directory(folder)) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.is_directory() && step_of(entry.path())) {
        found.push_back(entry.path());
      }
    }
  }
  std::sort(found.begin(), found.end(),
            [](const fs::path& a, const fs::path& b) { return *step_of(a) < *step_of(b); });
  return found;
}

fs::path save(const fs::path& folder, const optim::Arena& arena, const TrainingState& state) {
  fs::path final_path = step_folder(folder, state.step);
  if (fs::exists(final_path)) {
    return final_path;
  }
  check_space(folder, arena);
  const fs::path unfinished =
      folder / (std::string(kUnfinishedPrefix) + std::to_string(state.step) + "-" +
                std::to_string(::getpid()));
  fs::remove_all(unfinished);
  fs::create_directory(unfinished);
  try {
    Manifest manifest{.state = state, .buckets = arena.buckets(), .shards = {}};
    for (const optim::Role role : arena.state_roles()) {
      manifest.shards.push_back(write_role(unfinished, arena, role));
    }
    if (state.fp8) {
      manifest.shards.push_back(write_fp8(unfinished, *state.fp8));
    }
    io::write_file_atomic(unfinished / "config.yaml", state.config);
    io::write_file_atomic(unfinished / kManifestName, to_json(manifest));
    io::rename_durably(unfinished, final_path);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);
    throw;
  }
  return final_path;
}

TrainingState load_state(const fs::path& checkpoint) {
  return read_manifest(checkpoint).state;
}

TrainingState load(const fs::path& checkpoint, optim::Arena& arena) {
  Manifest manifest = read_manifest(checkpoint);
  check_layout(manifest, checkpoint, arena);
  manifest.state.fp8 = read_fp8(manifest, checkpoint);
  std::vector<io::SafetensorsFile> files;
  for (const optim::Role role : arena.state_roles()) {
    files.push_back(open_shard(checkpoint, find_shard(manifest, checkpoint, role)));
    for (const optim::Bucket& bucket : arena.buckets()) {
      (void)find_bucket(files.back(), bucket);
    }
  }
  for (size_t i = 0; i < files.size(); ++i) {
    const optim::Role role = arena.state_roles()[i];
    for (const optim::Bucket& bucket : arena.buckets()) {
      bucket.tensor(role).copy_(read_bucket(files[i], bucket));
    }
  }
  arena.refresh_compute();
  return manifest.state;
}

void load_for_sampling(const fs::path& checkpoint, std::optional<size_t> ema, optim::Arena& arena) {
  const Manifest manifest = read_manifest(checkpoint);
  check_layout(manifest, checkpoint, arena);
  const optim::Role role = ema ? optim::Role::average(*ema) : optim::Role::master();
  const io::SafetensorsFile file = open_shard(checkpoint, find_shard(manifest, checkpoint, role));
  for (const optim::Bucket& bucket : arena.buckets()) {
    bucket.compute.copy_(read_bucket(file, bucket));
  }
}

void remove_unfinished(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kUnfinishedPrefix)) {
      log_info("[checkpoint] removing ", entry.path(), ", which was never finished");
      fs::remove_all(entry.path());
    }
  }
}

void prune(const fs::path& folder, int64_t keep_last, int64_t keep_every) {
  if (keep_last <= 0) {
    return;
  }
  const std::vector<fs::path> checkpoints = list_checkpoints(folder);
  const auto num_old = static_cast<int64_t>(checkpoints.size()) - keep_last;
  for (int64_t i = 0; i < num_old; ++i) {
    const fs::path& checkpoint = checkpoints[static_cast<size_t>(i)];
    if (keep_every > 0 && *step_of(checkpoint) % keep_every == 0) {
      continue;
    }
    // Renamed first, so that a run that ends here leaves no half of a step-N behind.
    const fs::path doomed =
        folder / (std::string(kUnfinishedPrefix) + checkpoint.filename().string());
    io::rename_durably(checkpoint, doomed);
    fs::remove_all(doomed);
  }
}

}  // namespace kinora::checkpoint
