#include "kinora/core/process_memory.h"

#include <malloc.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "kinora/core/error.h"

namespace kinora {

bool start_resident_peak_anew() {
  ::malloc_trim(0);
  std::ofstream file("/proc/self/clear_refs");
  file << '5';  // proc(5): resets the peak resident set size
  file.close();
  return file.good();
}

int64_t peak_resident_bytes() {
  std::ifstream file("/proc/self/status");
  std::string word;
  int64_t kib = 0;
  while (file >> word) {
    if (word == "VmHWM:" && file >> kib) {
      return 1024 * kib;
    }
  }
  throw_error(ErrorKind::kIo,
              "[memory] /proc/self/status must have VmHWM, which this system lacks");
}

int64_t physical_memory() {
  return static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
}

int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  int64_t kib = 0;
  std::string unit;
  while (file >> name >> kib) {
    if (name == "MemAvailable:") {
      return 1024 * kib;
    }
    std::getline(file, unit);
  }
  return 0;
}

}  // namespace kinora
