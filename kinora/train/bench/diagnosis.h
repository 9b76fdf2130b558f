#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/comm/link_speed.h"

/// What a machine offers to a run, measured where that takes seconds: `kinora doctor`.
namespace kinora::train {

/// One fact.
struct Finding {
  std::string section;  ///< "host", "limits", "disk", "gpu", ...
  std::string name;
  std::string value;             ///< for people, with its unit
  std::optional<double> number;  ///< of a measurement or a size: bytes, bytes/s, FLOP/s
  std::string advice;            ///< what it will cost and how to mend it; "": all is well
};
using Findings = std::vector<Finding>;

/// Version, commit, libraries, modules.
[[nodiscard]] Findings find_program();

/// Processors, memory, and the limits that a container or the shell sets.
[[nodiscard]] Findings find_host();

/// Writes and reads 256 MiB in `folder`, past the system's cache. kIo if it cannot be written.
[[nodiscard]] Findings find_disk(const std::filesystem::path& folder);

/// GPUs, or why there are none; which of them reach each other's memory.
[[nodiscard]] Findings find_gpus();

/// Speed of matrix products and copies on `device`, and by which kernels a DiT-XL/2 would run.
[[nodiscard]] Findings find_compute(at::Device device);

/// What the speeds of operations among `ranks` ranks are, in words.
[[nodiscard]] Findings describe_collectives(const std::vector<comm::OperationSpeed>& speeds,
                                            int64_t ranks);

/// Measures the collectives that training needs. All ranks call it; a group of one finds nothing.
[[nodiscard]] Findings find_collectives(const comm::Group& group, at::Device device);

}  // namespace kinora::train
