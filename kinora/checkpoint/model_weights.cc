#include "kinora/checkpoint/model_weights.h"

#include <ATen/ops/empty.h>

#include <memory>
#include <optional>
#include <sstream>

#include "kinora/checkpoint/arrays_file.h"
#include "kinora/checkpoint/buffers.h"
#include "kinora/checkpoint/finite.h"
#include "kinora/checkpoint/frozen.h"
#include "kinora/checkpoint/manifest.h"
#include "kinora/checkpoint/shards.h"
#include "kinora/checkpoint/staging.h"
#include "kinora/checkpoint/weights_output.h"
#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora::checkpoint {
namespace {

constexpr size_t kMaxNamesInMessage = 8;

/// The model's buffers; its parameters are to follow.
LateTensors with_buffers(nn::Module& model) {
  LateTensors tensors;
  for (const auto& [name, buffer] : model.named_buffers()) {
    tensors.emplace(name, late_tensor(*buffer));
  }
  return tensors;
}

}  // namespace

WeightsMetadata weights_metadata(const std::string& config) {
  WeightsMetadata metadata = {{"format", "pt"}};  // what loaders look for
  if (!config.empty()) {
    metadata.emplace(kConfigMetadata, config);
  }
  return metadata;
}

bool WeightsFit::is_whole() const {
  return missing.empty() && unexpected.empty() && misshapen.empty();
}

bool fits_shape(const std::vector<int64_t>& given, const std::vector<int64_t>& wanted) {
  const auto without_ones = [](std::vector<int64_t> shape) {
    std::erase(shape, 1);
    return shape;
  };
  return given == wanted || without_ones(given) == without_ones(wanted);
}

WeightsFit compare(const LateTensors& tensors, nn::Module& model) {
  WeightsFit fit;
  std::map<std::string, std::vector<int64_t>> expected;
  for (const auto& [path, parameter] : model.named_parameters()) {
    expected.emplace(path, parameter->whole_shape());
    if (!tensors.contains(path)) {
      fit.missing.push_back(path);
    }
  }
  for (const auto& [path, buffer] : model.named_buffers()) {
    expected.emplace(path, buffer->sizes().vec());
  }
  for (const auto& [name, tensor] : tensors) {
    const auto found = expected.find(name);
    if (found == expected.end()) {
      fit.unexpected.push_back(name);
    } else if (fits_shape(tensor.shape, found->second)) {
      fit.matched.push_back(name);
    } else {
      std::ostringstream text;
      text << name << " (must be " << at::IntArrayRef(found->second) << ", is "
           << at::IntArrayRef(tensor.shape) << ")";
      fit.misshapen.push_back(text.str());
    }
  }
  return fit;
}

std::string describe(const WeightsFit& fit) {
  std::ostringstream text;
  text << fit.missing.size() << " missing [" << list_names(fit.missing, kMaxNamesInMessage) << "], "
       << fit.unexpected.size() << " unexpected [" << list_names(fit.unexpected, kMaxNamesInMessage)
       << "], " << fit.misshapen.size() << " of another shape ["
       << list_names(fit.misshapen, kMaxNamesInMessage) << "]";
  return text.str();
}

void load_weights(const WeightsFile& file, nn::Module& model, optim::Arena& arena) {
  load_weights(file.tensors(), file.path(), model, arena);
}

void load_weights(const LateTensors& tensors, const std::filesystem::path& origin,
                  nn::Module& model, optim::Arena& arena) {
  const WeightsFit fit = compare(tensors, model);
  KINORA_CHECK(fit.is_whole(), kIo, "[weights] ", origin,
               " does not fit the model: ", describe(fit),
               ". Hint: compare model.* with how the file was trained");
  copy_weights(tensors, origin, model, arena);
  if (arena.options().train) {
    arena.reset_averages();
  }
}

void copy_weights(const LateTensors& tensors, const std::filesystem::path& origin,
                  nn::Module& model, optim::Arena& arena) {
  for (const auto& [path, parameter] : model.named_parameters()) {
    if (const auto found = tensors.find(path); found != tensors.end()) {
      arena.load_parameter(path, found->second.read_all().view(parameter->whole_shape()));
    }
  }
  for (const auto& [path, buffer] : model.named_buffers()) {
    if (const auto found = tensors.find(path); found != tensors.end()) {
      *buffer = found->second.read_all().to(buffer->device(), buffer->scalar_type(),
                                            /*non_blocking=*/false, /*copy=*/true);
      check_finite(path, *buffer, origin);
    }
  }
  check_finite(arena, arena.options().train ? optim::Role::master() : optim::Role::compute(),
               origin);
}

LateTensors arena_weights(nn::Module& model, const optim::Arena& arena, optim::Role role) {
  LateTensors tensors = with_buffers(model);
  for (const auto& [name, parameter] : model.named_parameters()) {
    tensors[name] = {.type = at::kFloat,
                     .shape = parameter->whole_shape(),
                     .read =
                         [&arena, role, path = name](int64_t begin, int64_t end) {
                           return rows_of(arena.export_parameter(path, role).to(at::kFloat).cpu(),
                                          begin, end);
                         },
                     .reads_rows = false};
  }
  return tensors;
}

void write_arena_weights(const std::filesystem::path& path, const LateTensors& tensors,
                         const optim::Arena& arena, at::ScalarType type,
                         const WeightsMetadata& metadata) {
  const optim::ArenaOptions& options = arena.options();
  if (options.sharding.group.rank() == 0 && options.tensor.rank() == 0 &&
      options.pipeline.rank() == 0) {
    write_weights(path, tensors, {.type = type, .metadata = metadata});
    return;
  }
  for (const auto& [name, tensor] : tensors) {
    (void)tensor.read_all();  // this rank's part of it, for who writes
  }
}

void save_weights(const std::filesystem::path& path, nn::Module& model, const optim::Arena& arena,
                  optim::Role role, at::ScalarType type, const WeightsMetadata& metadata) {
  write_arena_weights(path, arena_weights(model, arena, role), arena, type, metadata);
}

LateTensors checkpoint_weights(const std::filesystem::path& checkpoint, nn::Module& model,
                               optim::Role role) {
  /// What the tensors are read from.
  struct Source {
    Manifest manifest;
    std::vector<RoleReader> boxes;
  };
  const auto source = std::make_shared<Source>(Source{read_manifest(checkpoint), {}});
  const Manifest& manifest = source->manifest;
  std::vector<Shard> shards = shards_of(manifest, checkpoint, optim::to_string(role));
  const std::vector<Shard> buffers = arrays_shards(manifest, kBuffersRole);
  const std::vector<Shard> frozen = arrays_shards(manifest, kFrozenRole);
  shards.insert(shards.end(), buffers.begin(), buffers.end());
  shards.insert(shards.end(), frozen.begin(), frozen.end());
  Staging staging(at::kCPU);
  check_sizes(checkpoint, shards);
  check_content(checkpoint, shards, {}, staging);
  restore_buffers(read_arrays(manifest, checkpoint, kBuffersRole), model);
  source->boxes = readers_of(checkpoint, manifest, role);
  LateTensors tensors = with_buffers(model);
  tensors.merge(frozen_weights(read_arrays(manifest, checkpoint, kFrozenRole), checkpoint, model));
  for (size_t b = 0; b < manifest.buckets.size(); ++b) {
    for (const optim::Slot& slot : manifest.buckets[b].slots) {
      const int64_t numel = c10::multiply_integers(slot.shape);
      KINORA_CHECK(
          slot.offset >= 0 && numel >= 0 && numel <= manifest.buckets[b].numel - slot.offset, kIo,
          "[weights] ", checkpoint, ": ", slot.path, " lies outside of its bucket");
      if (slot.box) {
        tensors[slot.path] = {.type = at::kFloat,
                              .shape = slot.box->whole,
                              .read =
                                  [source, &slot, b, role](int64_t begin, int64_t end) {
                                    const at::Tensor whole =
                                        read_whole(source->boxes, source->manifest, b, slot, role);
                                    return rows_of(whole.to(at::kFloat), begin, end);
                                  },
                              .reads_rows = false};
        continue;
      }
      tensors[slot.path] = {
          .type = at::kFloat,
          .shape = slot.shape,
          .read = [source, &slot, b](int64_t begin, int64_t end) {
            std::vector<int64_t> shape = slot.shape;
            if (!shape.empty()) {
              shape.front() = end - begin;
            }
            const at::Tensor values =
                at::empty({c10::multiply_integers(shape)}, source->boxes.front().type(b));
            source->boxes.front().read(b, slot.offset + begin * (values.numel() / (end - begin)),
                                       values);
            optim::Slot rows = slot;
            rows.shape = shape;
            return optim::in_shape(values.to(at::kFloat), rows);
          }};
    }
  }
  return tensors;
}

}  // namespace kinora::checkpoint
