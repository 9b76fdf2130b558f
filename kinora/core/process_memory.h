#pragma once

#include <cstdint>

/// Memory of this process and this machine, by Linux's /proc.
namespace kinora {

/// Starts peak_resident_bytes() anew from what the process holds now, after giving back what its
/// heap holds for nothing. False if the kernel does not let it: the peak is then that of all time.
[[nodiscard]] bool start_resident_peak_anew();

/// The most bytes of RAM that the process has held at once: everything, its code and libraries
/// too. kIo if the kernel does not say.
[[nodiscard]] int64_t peak_resident_bytes();

/// Bytes of RAM that this machine has.
[[nodiscard]] int64_t physical_memory();

/// Bytes of RAM that the system could give without swapping; 0 if it does not say.
[[nodiscard]] int64_t available_memory();

}  // namespace kinora
