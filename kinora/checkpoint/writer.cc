#include "kinora/checkpoint/writer.h"

#include <chrono>
#include <future>
#include <numeric>
#include <optional>
#include <sstream>
#include <utility>

#include "kinora/checkpoint/agreement.h"
#include "kinora/checkpoint/arrays_file.h"
#include "kinora/checkpoint/fp8_file.h"
#include "kinora/checkpoint/manifest.h"
#include "kinora/checkpoint/step_folders.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/seconds.h"
#include "kinora/core/text.h"
#include "kinora/io/file.h"

namespace kinora::checkpoint {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::vector<int64_t> all_ranks(const comm::Group& group) {
  std::vector<int64_t> ranks(static_cast<size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

int64_t num_bytes(const std::vector<ShardFile>& files) {
  int64_t sum = 0;
  for (const ShardFile& file : files) {
    sum += file.shard.num_bytes;
  }
  return sum;
}

std::string report(int64_t step, int64_t bytes, double stall, double total, SnapshotPlace place) {
  std::ostringstream text;
  text << "[checkpoint] step " << step << ": stall "
       << human_duration(place == SnapshotPlace::kNone ? total : stall) << ", total "
       << human_duration(total) << ", " << human_rate(static_cast<double>(bytes) / 1e9 / total)
       << " GB/s, snapshot " << to_string(place);
  return text.str();
}

}  // namespace

struct Writer::Impl {
  /// A checkpoint on its way.
  struct Job {
    TrainingState state;
    std::vector<ShardFile> files;
    Snapshot snapshot;
    Clock::time_point started;
    double stall = 0.0;
  };

  Impl(WriterOptions wanted, const optim::Arena& written, const comm::Group& world)
      : options(std::move(wanted)),
        arena(written),
        group(world.split({all_ranks(world)})),
        part(part_of_rank(written, group)),
        buckets(buckets_of_stages(written, group)),
        staging(written.options().device, &written),
        place(options.place) {}

  [[nodiscard]] bool leads() const { return group.rank() == 0; }

  void run(Job job);
  [[nodiscard]] std::string prepare(const TrainingState& state) const;
  [[nodiscard]] std::string write(const fs::path& unfinished, Job& job);
  void commit(const fs::path& unfinished, const Job& job, const std::vector<std::string>& shards);
  [[nodiscard]] Shard write_frozen(const fs::path& unfinished, const TrainingState& state);

  const WriterOptions options;
  const optim::Arena& arena;
  const comm::Group group;  // for the background alone: a group is for one thread at a time
  const std::optional<Part> part;
  const std::vector<optim::Bucket> buckets;  // of all stages
  Staging staging;
  std::optional<SnapshotPlace> place;
  /// A file with the frozen weights, and which it is: the next checkpoint is given another name of
  /// it. Rank 0's.
  std::optional<std::pair<fs::path, Shard>> frozen;
  std::future<void> under_way;
};

/// The name of the folder to write into; none if there is nothing to do.
std::string Writer::Impl::prepare(const TrainingState& state) const {
  if (fs::exists(step_folder(options.folder, state.step))) {
    return "";
  }
  int64_t bytes = 0;
  for (const Arrays* arrays : {&state.buffers, &state.frozen}) {
    for (const auto& [path, array] : *arrays) {
      bytes += static_cast<int64_t>(array.nbytes());
    }
  }
  for (const optim::Role role : arena.state_roles()) {
    const auto element = static_cast<int64_t>(arena.buckets().front().tensor(role).element_size());
    for (const optim::Bucket& bucket : buckets) {
      bytes += element * bucket.count_of(role, bucket.numel) * arena.options().tensor.size();
    }
  }
  check_space(options.folder, bytes);
  std::string name = unfinished_name(state.step);
  fs::remove_all(options.folder / name);
  fs::create_directory(options.folder / name);
  return name;
}

/// Returns the shards as text.
std::string Writer::Impl::write(const fs::path& unfinished, Job& job) {
  if (job.snapshot.ready) {
    job.snapshot.ready->synchronize();
  }
  try {
    write_shards(unfinished, job.files, staging);
  } catch (const Error& error) {
    int64_t missing = num_bytes(job.files) - io::free_space(unfinished);
    for (const ShardFile& file : job.files) {
      std::error_code none;
      const auto written = fs::file_size(unfinished / file.shard.file, none);
      missing -= none ? 0 : static_cast<int64_t>(written);
    }
    if (error.kind() != ErrorKind::kIo || missing <= 0) {
      throw;
    }
    throw_error(
        ErrorKind::kIo, error.what(), "; ", human_bytes(missing),
        " are missing for this rank's part. Hint: free some, or lower checkpoint.keep_last");
  }
  std::vector<Shard> shards;
  for (ShardFile& file : job.files) {
    shards.push_back(std::move(file.shard));
  }
  job.files.clear();  // and with them the snapshot
  return to_json(shards);
}

/// The weights are written once, and then linked, where the file system can and the last checkpoint
/// is still there.
Shard Writer::Impl::write_frozen(const fs::path& unfinished, const TrainingState& state) {
  if (frozen) {
    std::error_code none;
    fs::create_hard_link(frozen->first, unfinished / frozen->second.file, none);
    if (none) {
      frozen.reset();
    }
  }
  if (!frozen) {
    frozen.emplace(fs::path(), write_arrays(unfinished, kFrozenRole, state.frozen));
  }
  frozen->first = step_folder(options.folder, state.step) / frozen->second.file;
  return frozen->second;
}

void Writer::Impl::commit(const fs::path& unfinished, const Job& job,
                          const std::vector<std::string>& shards) {
  Manifest manifest{.state = job.state,
                    .buckets = buckets,
                    .num_boxes = arena.options().tensor.size(),
                    .num_stages = arena.options().pipeline.size(),
                    .shards = {}};
  int64_t bytes = 0;
  for (const std::string& of_rank : shards) {
    for (Shard& shard : parse_shards(of_rank)) {
      bytes += shard.num_bytes;
      manifest.shards.push_back(std::move(shard));
    }
  }
  if (!job.state.buffers.empty()) {
    manifest.shards.push_back(write_arrays(unfinished, kBuffersRole, job.state.buffers));
  }
  if (!job.state.frozen.empty()) {
    manifest.shards.push_back(write_frozen(unfinished, job.state));
  }
  if (job.state.fp8) {
    manifest.shards.push_back(write_fp8(unfinished, *job.state.fp8));
  }
  io::write_file_atomic(unfinished / "config.yaml", job.state.config);
  io::write_file_atomic(unfinished / kManifestName, to_json(manifest));
  io::rename_durably(unfinished, step_folder(options.folder, job.state.step));
  log_info(
      report(job.state.step, bytes, job.stall, seconds_since(job.started), job.snapshot.place));
  prune(options.folder, options.keep_last, options.keep_every);
}

void Writer::Impl::run(Job job) {
  const std::string name =
      in_agreement(group, [&] { return leads() ? prepare(job.state) : std::string(); }).front();
  if (name.empty()) {
    return;
  }
  const fs::path unfinished = options.folder / name;
  try {
    const std::vector<std::string> shards =
        in_agreement(group, [&] { return write(unfinished, job); });
    in_agreement(group, [&] {
      if (leads()) {
        commit(unfinished, job, shards);
      }
      return std::string();
    });
  } catch (...) {
    if (leads()) {
      std::error_code ignored;
      fs::remove_all(unfinished, ignored);
    }
    throw;
  }
}

Writer::Writer(WriterOptions options, const optim::Arena& arena, const comm::Group& world)
    : impl_(std::make_unique<Impl>(std::move(options), arena, world)) {}

Writer::~Writer() {
  try {
    wait();
  } catch (const std::exception& error) {
    log_error(error.what());
  }
}

void Writer::start(const TrainingState& state) {
  const Clock::time_point started = Clock::now();
  const bool is_late =
      impl_->under_way.valid() &&
      impl_->under_way.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  wait();
  if (is_late && impl_->leads()) {
    log_warn("[checkpoint] step ", state.step, " waited ", human_duration(seconds_since(started)),
             " for the one before. Hint: raise checkpoint.every");
  }
  Impl::Job job{.state = state, .files = {}, .snapshot = {}, .started = started};
  if (impl_->part) {
    job.files = shard_files(impl_->arena, *impl_->part);
    const at::Device device = impl_->arena.options().device;
    if (!impl_->place) {
      // A device does not read from a disk.
      impl_->place = choose_place(impl_->arena.disk() != nullptr ? at::kCPU : device,
                                  num_bytes(job.files), impl_->options.ranks_per_host);
    }
    job.snapshot = take_snapshot(job.files, device, *impl_->place, impl_->staging);
    impl_->place = job.snapshot.place;
  }
  job.stall = seconds_since(started);
  const bool waits = impl_->part && *impl_->place == SnapshotPlace::kNone;
  impl_->under_way = std::async(
      std::launch::async,
      [impl = impl_.get(), job = std::move(job)]() mutable { impl->run(std::move(job)); });
  if (waits) {
    wait();
  }
}

void Writer::wait() {
  if (impl_->under_way.valid()) {
    impl_->under_way.get();
  }
}

fs::path save(const fs::path& folder, const optim::Arena& arena, const TrainingState& state,
              const comm::Group& world) {
  Writer writer({.folder = folder, .place = SnapshotPlace::kNone}, arena, world);
  writer.start(state);
  writer.wait();
  return step_folder(folder, state.step);
}

}  // namespace kinora::checkpoint
