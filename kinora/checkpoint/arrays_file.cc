#include "kinora/checkpoint/arrays_file.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "kinora/device/host_bytes.h"
#include "kinora/io/safetensors.h"

namespace kinora::checkpoint {

namespace fs = std::filesystem;

Shard write_arrays(const fs::path& folder, const char* role, const Arrays& arrays) {
  const std::string file = std::string(role) + ".safetensors";
  std::vector<io::SafetensorsTensor> tensors;
  tensors.reserve(arrays.size());
  for (const auto& [name, array] : arrays) {
    tensors.push_back({.name = name,
                       .dtype = device::dtype_of(array.scalar_type()),
                       .shape = array.sizes().vec(),
                       .data = device::bytes_of(array)});
  }
  const io::SafetensorsSummary summary = io::write_safetensors(folder / file, tensors);
  return {.file = file,
          .role = role,
          .part = {},
          .num_bytes = summary.num_bytes,
          .chunk_bytes = summary.num_bytes,
          .checksums = {summary.checksum}};
}

std::vector<Shard> arrays_shards(const Manifest& manifest, const char* role) {
  std::vector<Shard> shards;
  std::copy_if(manifest.shards.begin(), manifest.shards.end(), std::back_inserter(shards),
               [role](const Shard& shard) { return shard.role == role; });
  return shards;
}

Arrays read_arrays(const Manifest& manifest, const fs::path& checkpoint, const char* role) {
  Arrays arrays;
  for (const Shard& shard : arrays_shards(manifest, role)) {
    const auto file = io::SafetensorsFile::open(checkpoint / shard.file);
    for (const io::SafetensorsTensor& tensor : file.tensors()) {
      arrays[tensor.name] = device::tensor_from_bytes(tensor.dtype, tensor.shape, tensor.data);
    }
  }
  return arrays;
}

}  // namespace kinora::checkpoint
