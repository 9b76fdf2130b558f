#include "kinora/checkpoint/fp8_file.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/io/safetensors.h"
#include "kinora/ops/host_bytes.h"

namespace kinora::checkpoint {
namespace {

namespace fs = std::filesystem;

std::vector<std::pair<const char*, at::Tensor*>> arrays_of(ops::Fp8State& state) {
  return {{"amax", &state.amax}, {"history", &state.history}, {"scale", &state.scale}};
}

}  // namespace

Shard write_fp8(const fs::path& folder, ops::Fp8State state) {
  const std::string file = std::string(kFp8Role) + ".safetensors";
  std::vector<io::SafetensorsTensor> tensors;
  for (const auto& [name, array] : arrays_of(state)) {
    tensors.push_back({.name = name,
                       .dtype = DType::kF32,
                       .shape = array->sizes().vec(),
                       .data = ops::bytes_of(*array)});
  }
  const io::SafetensorsSummary summary = io::write_safetensors(folder / file, tensors);
  return {.file = file,
          .role = kFp8Role,
          .part = {},
          .num_bytes = summary.num_bytes,
          .chunk_bytes = summary.num_bytes,
          .checksums = {summary.checksum}};
}

std::optional<ops::Fp8State> read_fp8(const Manifest& manifest, const fs::path& checkpoint) {
  const auto shard = std::find_if(manifest.shards.begin(), manifest.shards.end(),
                                  [](const Shard& other) { return other.role == kFp8Role; });
  if (shard == manifest.shards.end()) {
    return std::nullopt;
  }
  const auto file = io::SafetensorsFile::open(checkpoint / shard->file);
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

}  // namespace kinora::checkpoint
