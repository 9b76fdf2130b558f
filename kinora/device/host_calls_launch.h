#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>

/// The parts of host_calls.h that need CUDA; builds without it have a file that throws.
namespace kinora::device::cuda {

/// On the device's current stream. `call` must throw nothing.
void call_on_host(c10::Device device, std::function<void()> call);
/// Borrows it, also for the replays of a graph that this is recorded in.
void call_kept_on_host(c10::Device device, const std::function<void()>& call);

/// As the system names its devices: "0000:17:00.0".
[[nodiscard]] std::string bus_address(c10::Device device);

}  // namespace kinora::device::cuda
