#include "kinora/checkpoint/checkpoint.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "kinora/checkpoint/agreement.h"
#include "kinora/checkpoint/arrays_file.h"
#include "kinora/checkpoint/buffers.h"
#include "kinora/checkpoint/finite.h"
#include "kinora/checkpoint/fp8_file.h"
#include "kinora/checkpoint/frozen.h"
#include "kinora/checkpoint/manifest.h"
#include "kinora/checkpoint/shards.h"
#include "kinora/checkpoint/staging.h"
#include "kinora/core/error.h"
#include "kinora/device/device.h"

namespace kinora::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Where a parameter lies in a checkpoint.
struct SavedSlot {
  size_t bucket;
  const optim::Bucket* its_bucket;
  const optim::Slot* slot;
};

/// By path. The checkpoint's buckets may be others than the arena's, but must hold the same
/// parameters. kIo.
std::unordered_map<std::string, SavedSlot> find_slots(const Manifest& manifest,
                                                      const fs::path& checkpoint,
                                                      const optim::Arena& arena) {
  std::unordered_map<std::string, SavedSlot> saved;
  for (size_t b = 0; b < manifest.buckets.size(); ++b) {
    for (const optim::Slot& slot : manifest.buckets[b].slots) {
      saved[slot.path] = {b, &manifest.buckets[b], &slot};
    }
  }
  size_t count = 0;
  for (const optim::Bucket& bucket : arena.buckets()) {
    for (const optim::Slot& slot : bucket.slots) {
      const auto found = saved.find(slot.path);
      KINORA_CHECK(found != saved.end() && found->second.slot->whole_shape() == slot.whole_shape(),
                   kIo, "[checkpoint] ", checkpoint, " is of another model: ", slot.path,
                   found == saved.end() ? " is not in it" : " has another shape",
                   ". Hint: model.* and finetune.* must be as when it was saved");
      const int64_t offset = found->second.slot->offset;
      const int64_t end = manifest.buckets[found->second.bucket].numel;
      const int64_t numel = c10::multiply_integers(found->second.slot->shape);
      KINORA_CHECK(offset >= 0 && numel <= end && offset <= end - numel, kDamaged, "[checkpoint] ",
                   checkpoint, " is damaged: ", slot.path, " at ", offset, " reaches beyond the ",
                   end, " elements of its bucket");
      ++count;
    }
  }
  count += static_cast<size_t>(arena.count_elsewhere());
  KINORA_CHECK(count == saved.size(), kIo, "[checkpoint] ", checkpoint,
               " is of another model: it has ", saved.size(), " parameters, this model ", count,
               ". Hint: model.* and finetune.* must be as when it was saved");
  return saved;
}

/// Whether both have the same boxes of a parameter, of which each may have another.
bool are_cut_alike(const optim::Slot& left, const optim::Slot& right) {
  if (!left.box || !right.box) {
    return !left.box && !right.box;
  }
  nn::Box same = *left.box;
  same.index = right.box->index;
  return same == *right.box;
}

/// Reads the parts of all parameters that lie in this rank's slices.
class PartsReader {
 public:
  PartsReader(const Manifest& manifest, const std::unordered_map<std::string, SavedSlot>& saved,
              const optim::Arena& arena)
      : manifest_(manifest), saved_(saved), arena_(arena) {}

  /// boxes: the role's, or another's that this one is to have the elements of. Borrows them.
  void add(const std::vector<RoleReader>& boxes, optim::Role role) {
    for (const optim::Bucket& bucket : arena_.buckets()) {
      for (const optim::Slot& slot : bucket.slots) {
        const optim::Arena::Part part = arena_.own_part(slot.path, role);
        if (part.values.numel() > 0) {
          add(boxes, saved_.at(slot.path), slot, role, part);
        }
      }
    }
  }

  void read(Staging& staging) const {
    device::synchronize(arena_.options().device);  // the staging's streams do not wait for others
    read_into(targets_, staging);
    read_into(divided_otherwise_, staging);
    for (const auto& [boxes, from, to, role, part] : rearranged_) {
      const at::Tensor whole = read_whole(*boxes, manifest_, from.bucket, *from.slot, role);
      const at::Tensor own = to->box ? to->box->cut(whole) : whole;
      arena_.store(part.values, in_order(own, *to).narrow(0, part.begin, part.values.numel()));
    }
  }

 private:
  /// A parameter whose elements lie in another order in the checkpoint: read whole, one at a time.
  struct Rearranged {
    const std::vector<RoleReader>* boxes;
    SavedSlot from;
    const optim::Slot* to;
    optim::Role role;
    optim::Arena::Part part;
  };

  void add(const std::vector<RoleReader>& boxes, const SavedSlot& from, const optim::Slot& slot,
           optim::Role role, const optim::Arena::Part& part) {
    KINORA_CHECK(role.kind != optim::Role::Kind::kExpAvgSq || !from.slot->is_matrix, kDamaged,
                 "[checkpoint] ", slot.path,
                 " must have an exp_avg_sq, but it is a matrix of muon");
    if (from.slot->channels_last == slot.channels_last && are_cut_alike(*from.slot, slot)) {
      KINORA_CHECK(from.slot->offset % role.elements_each() == 0, kDamaged, "[checkpoint] ",
                   slot.path, " must begin with a block of ", role.elements_each(),
                   " elements, got an offset of ", from.slot->offset);
      const int64_t begin = from.its_bucket->count_of(role, from.slot->offset + part.begin);
      const auto box = static_cast<size_t>(slot.box ? slot.box->index : 0);
      targets_.push_back({&boxes[box], from.bucket, begin, part.values});
      return;
    }
    KINORA_CHECK(
        part.values.scalar_type() != at::kByte && role.elements_each() == 1 && !role.is_of_rows(),
        kIo, "[checkpoint] the ", optim::to_string(role), " of ", slot.path,
        " lies in another order, or is divided otherwise. Hint: use the kinora and the "
        "parallel.tensor that wrote it");
    if (from.slot->channels_last || slot.channels_last) {
      rearranged_.push_back({&boxes, from, &slot, role, part});
    } else {
      divided_otherwise_.push_back(
          {&boxes, from.bucket, from.slot, &slot, part.begin, part.values});
    }
  }

  const Manifest& manifest_;
  const std::unordered_map<std::string, SavedSlot>& saved_;
  const optim::Arena& arena_;
  std::vector<ReadTarget> targets_;
  std::vector<BoxTarget> divided_otherwise_;
  std::vector<Rearranged> rearranged_;
};

/// All files that training goes on from.
std::vector<Shard> shards_to_read(const Manifest& manifest, const fs::path& checkpoint,
                                  const std::vector<optim::Role>& roles) {
  std::vector<Shard> shards;
  const auto add = [&shards](const std::vector<Shard>& more) {
    shards.insert(shards.end(), more.begin(), more.end());
  };
  for (const optim::Role role : roles) {
    add(shards_of(manifest, checkpoint, optim::to_string(role)));
  }
  add(arrays_shards(manifest, kFp8Role));
  add(arrays_shards(manifest, kBuffersRole));
  add(arrays_shards(manifest, kFrozenRole));
  return shards;
}

void check_state(const optim::OptimizerState& state, const fs::path& checkpoint,
                 const optim::Arena& arena) {
  const kernels::UpdateRule saved = state.rule;
  KINORA_CHECK(saved == arena.options().rule, kConfig, "[checkpoint] ", checkpoint,
               " has the moments of ", optim::to_string(saved), ", but this run updates by ",
               optim::to_string(arena.options().rule),
               ". Hint: optim.rule=", optim::to_string(saved),
               ", or a new run with checkpoint.init_from=", checkpoint.string());
  const auto check_format = [&](const char* what, const char* key, auto had, auto wanted) {
    KINORA_CHECK(had == wanted, kConfig, "[checkpoint] ", checkpoint, " has ", what, " in ",
                 optim::to_string(had), ", but this run keeps them in ", optim::to_string(wanted),
                 ". Hint: ", key, "=", optim::to_string(had),
                 ", or a new run with checkpoint.init_from=", checkpoint.string());
  };
  check_format("moments", "optim.moments", state.moments, arena.options().moments);
  check_format("masters", "optim.master", state.masters, arena.options().masters);
}

}  // namespace

TrainingState load_state(const fs::path& checkpoint) {
  return read_manifest(checkpoint).state;
}

bool has_averages(const fs::path& checkpoint) {
  return std::ranges::any_of(read_manifest(checkpoint).shards, [](const Shard& shard) {
    return shard.role == optim::to_string(optim::Role::average(0));
  });
}

TrainingState load(const fs::path& checkpoint, optim::Arena& arena, const comm::Group& world) {
  const std::vector<optim::Role> roles = arena.state_roles();
  Manifest manifest;
  std::unordered_map<std::string, SavedSlot> saved;
  std::vector<Shard> shards;
  std::vector<std::vector<RoleReader>> readers;  // [role][box]
  Staging staging(arena.options().device, &arena);
  in_agreement(world, [&] {
    manifest = read_manifest(checkpoint);
    check_state(manifest.state.optimizer, checkpoint, arena);
    saved = find_slots(manifest, checkpoint, arena);
    shards = shards_to_read(manifest, checkpoint, roles);
    check_sizes(checkpoint, shards);
    return std::string();
  });
  in_agreement(world, [&] {
    check_content(checkpoint, shards, {world.rank(), world.size()}, staging);
    return std::string();
  });
  in_agreement(world, [&] {
    manifest.state.fp8 = read_fp8(manifest, checkpoint);
    manifest.state.buffers = read_arrays(manifest, checkpoint, kBuffersRole);
    restore_frozen(read_arrays(manifest, checkpoint, kFrozenRole), checkpoint, arena);
    for (const optim::Role role : roles) {
      readers.push_back(readers_of(checkpoint, manifest, role));
    }
    return std::string();
  });
  in_agreement(world, [&] {
    PartsReader parts(manifest, saved, arena);
    for (size_t i = 0; i < roles.size(); ++i) {
      parts.add(readers[i], roles[i]);
    }
    parts.read(staging);
    for (const optim::Role role : roles) {
      check_finite(arena, role, checkpoint);
    }
    return std::string();
  });
  arena.refresh_compute();
  return manifest.state;
}

void load_for_sampling(const fs::path& checkpoint, std::optional<size_t> ema, nn::Module& model,
                       optim::Arena& arena) {
  const Manifest manifest = read_manifest(checkpoint);
  const auto saved = find_slots(manifest, checkpoint, arena);
  const optim::Role role = ema ? optim::Role::average(*ema) : optim::Role::master();
  std::vector<Shard> shards = shards_of(manifest, checkpoint, optim::to_string(role));
  const std::vector<Shard> buffers = arrays_shards(manifest, kBuffersRole);
  shards.insert(shards.end(), buffers.begin(), buffers.end());
  Staging staging(arena.options().device);
  check_sizes(checkpoint, shards);
  check_content(checkpoint, shards, {}, staging);
  restore_buffers(read_arrays(manifest, checkpoint, kBuffersRole), model);
  const std::vector<RoleReader> boxes = readers_of(checkpoint, manifest, role);
  PartsReader parts(manifest, saved, arena);
  parts.add(boxes, optim::Role::compute());
  parts.read(staging);
  check_finite(arena, optim::Role::compute(), checkpoint);
}

}  // namespace kinora::checkpoint
