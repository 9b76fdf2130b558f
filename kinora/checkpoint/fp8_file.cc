#include "kinora/checkpoint/fp8_file.h"

#include <string>

#include "kinora/checkpoint/arrays_file.h"
#include "kinora/core/error.h"

namespace kinora::checkpoint {

namespace fs = std::filesystem;

Shard write_fp8(const fs::path& folder, const ops::Fp8State& state) {
  return write_arrays(folder, kFp8Role,
                      {{"amax", state.amax}, {"history", state.history}, {"scale", state.scale}});
}

std::optional<ops::Fp8State> read_fp8(const Manifest& manifest, const fs::path& checkpoint) {
  const Arrays arrays = read_arrays(manifest, checkpoint, kFp8Role);
  if (arrays.empty()) {
    return std::nullopt;
  }
  const auto array = [&arrays](const char* name) {
    const auto found = arrays.find(name);
    return found == arrays.end() ? at::Tensor() : found->second;
  };
  ops::Fp8State state{.amax = array("amax"), .history = array("history"), .scale = array("scale")};
  const std::string fault = ops::fault_of(state);
  KINORA_CHECK(fault.empty(), kIo, "[checkpoint] ", checkpoint, ": of ", kFp8Role, ".safetensors ",
               fault, ". Hint: use another checkpoint of the run");
  return state;
}

}  // namespace kinora::checkpoint
