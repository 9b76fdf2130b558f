#include "kinora/train/bench/diagnosis.h"

#include <ATen/Version.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

#include "kinora/comm/link_speed.h"
#include "kinora/comm/self_check.h"
#include "kinora/core/build_info.h"
#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/core/module_file.h"
#include "kinora/core/seconds.h"
#include "kinora/core/text.h"
#include "kinora/device/device.h"
#include "kinora/io/file.h"
#include "kinora/train/setup.h"

namespace kinora::train {
namespace {

namespace fs = std::filesystem;

constexpr int kDigits = 3;             // of measured numbers
constexpr double kLeastSeconds = 0.3;  // of a measurement
constexpr int64_t kDiskBytes = int64_t{1} << 28;
constexpr rlim_t kEnoughFiles = 4096;
constexpr double kLeastSharedMemory = 1.0 * kGiB;
constexpr double kSlowDisk = 2e8;  // bytes/s: a checkpoint of DiT-XL/2 then takes a minute

std::string rate(double bytes_per_s) {
  return human_number(bytes_per_s / 1e9, kDigits) + " GB/s";
}

/// The first line of a file; "" if there is none.
std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// What follows "KEY:" in a file of such lines; "" if it is not there.
std::string value_of(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) {
      const size_t colon = line.find(':');
      return colon == std::string::npos ? "" : std::string(trim(line.substr(colon + 1)));
    }
  }
  return "";
}

std::optional<double> number_of(const std::string& text) {
  double value = 0.0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  return read.ec == std::errc() ? std::optional(value) : std::nullopt;
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Finding size(const std::string& section, const std::string& name, double bytes) {
  return {section, name, human_bytes(std::llround(bytes)), bytes, ""};
}

void add_memory(Findings& found) {
  for (const auto& [key, name] :
       {std::pair("MemTotal", "memory"), std::pair("MemAvailable", "memory available")}) {
    if (const auto kib = number_of(value_of("/proc/meminfo", key))) {
      found.push_back(size("host", name, *kib * 1024.0));
    }
  }
  if (const auto most = number_of(first_line("/sys/fs/cgroup/memory.max"))) {
    found.push_back(size("limits", "memory of this container", *most));
  }
}

void add_limits(Findings& found) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    found.push_back({"limits", "open files", std::to_string(files.rlim_cur),
                     static_cast<double>(files.rlim_cur),
                     files.rlim_cur >= kEnoughFiles
                         ? ""
                         : "archives and ranks need many: ulimit -n 65536 before the start"});
  }
  rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    found.push_back({"limits", "address space", human_bytes(static_cast<int64_t>(space.rlim_cur)),
                     static_cast<double>(space.rlim_cur),
                     "mapped files and GPUs need far more than memory: ulimit -v unlimited"});
  }
  struct statvfs shared {};
  if (::statvfs("/dev/shm", &shared) == 0) {
    Finding finding =
        size("limits", "/dev/shm free",
             static_cast<double>(shared.f_bavail) * static_cast<double>(shared.f_frsize));
    if (*finding.number < kLeastSharedMemory) {
      finding.advice =
          "ranks of one host exchange through it where GPUs do not reach each other: give the "
          "container more, as by docker run --shm-size=8g";
    }
    found.push_back(finding);
  }
  const std::string limit = first_line("/sys/fs/cgroup/cpu.max");
  if (!limit.empty() && !limit.starts_with("max")) {
    const size_t space_at = limit.find(' ');
    const auto quota = number_of(limit);
    const auto period =
        space_at == std::string::npos ? std::nullopt : number_of(limit.substr(space_at + 1));
    if (quota && period && *period > 0.0) {
      found.push_back({"limits", "processors of this container",
                       human_number(*quota / *period, kDigits), *quota / *period, ""});
    }
  }
}

void add_environment(Findings& found) {
  std::string locale;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    locale = locale.empty() ? environment(name) : locale;
  }
  std::string lower = locale;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool is_utf8 =
      lower.find("utf-8") != std::string::npos || lower.find("utf8") != std::string::npos;
  found.push_back({"host", "locale", locale.empty() ? "not set" : locale, std::nullopt,
                   is_utf8 ? ""
                           : "numbers are read and written the same in every locale, but a "
                             "terminal may show captions wrongly: export LANG=C.UTF-8"});
  for (const char* name :
       {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "CUDA_VISIBLE_DEVICES",
        "CUDA_LAUNCH_BLOCKING", "NCCL_DEBUG", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE",
        "NCCL_SOCKET_IFNAME", "PYTORCH_CUDA_ALLOC_CONF"}) {
    if (const std::string value = environment(name); !value.empty()) {
      const bool is_slow = std::string_view(name) == "CUDA_LAUNCH_BLOCKING" && value != "0";
      found.push_back({"host", name, value, std::nullopt,
                       is_slow ? "every kernel is waited for: training is far slower" : ""});
    }
  }
}

/// Seconds of one call of `work` on the device, the least of some rounds.
double seconds_of(at::Device device, const std::function<void()>& work) {
  work();
  device::synchronize(device);
  double best = std::numeric_limits<double>::infinity();
  const double end = steady_seconds() + kLeastSeconds;
  do {
    const double start = steady_seconds();
    work();
    device::synchronize(device);
    best = std::min(best, steady_seconds() - start);
  } while (steady_seconds() < end);
  return best;
}

void add_product(at::Device device, at::ScalarType type, const std::string& name, Findings& found) {
  const int64_t n = device.is_cuda() ? 8192 : 1024;
  const at::Tensor a = at::ones({n, n}, at::device(device).dtype(type));
  const at::Tensor out = at::empty_like(a);
  at::Tensor result = out;
  const double seconds = seconds_of(device, [&] { at::matmul_out(result, a, a); });
  const double flops = 2.0 * std::pow(static_cast<double>(n), 3) / seconds;
  found.push_back({"speed", name + " matrix product, " + std::to_string(n) + " cubed",
                   human_number(flops / 1e12, kDigits) + " TFLOP/s", flops, ""});
}

}  // namespace

Findings find_program() {
  const BuildInfo& build = build_info();
  Findings found = {
      {"program", "kinora", std::string(build.version) + " of commit " + std::string(build.commit),
       std::nullopt, ""},
      {"program", "compiler", std::string(build.compiler) + ", " + std::string(build.build_type),
       std::nullopt, build.build_type == "Debug" ? "a build without optimisation is slow" : ""},
      {"program", "libtorch", std::string(build.libtorch), std::nullopt, ""},
      {"program", "own CUDA kernels",
       build.has_own_kernels ? std::string(build.cuda_architectures) : "none", std::nullopt,
       build.has_own_kernels || !build.has_cuda
           ? ""
           : "libtorch's serve, several times slower in places: build where nvcc is"}};
  for (const comm::Fact& fact : comm::program_facts()) {
    if (fact.name == "GPU driver") {
      found.push_back({"program", fact.name, fact.value, std::nullopt, ""});
    }
  }
  for (const auto& [name, what, how] :
       {std::tuple("tiff", "TIFF", ""), std::tuple("ffmpeg", "video files", " --video"),
        std::tuple("parquet", "Parquet", " --parquet")}) {
    const bool is_there =
        has_module({.name = name, .what = "", .needed_for = "", .how_to_have = ""});
    found.push_back({"program", what, is_there ? "can be read" : "cannot be read", std::nullopt,
                     is_there ? ""
                              : "only where they are wanted: scripts/setup.sh" + std::string(how) +
                                    ", then build again"});
  }
  return found;
}

Findings find_host() {
  Findings found;
  cpu_set_t usable;
  CPU_ZERO(&usable);
  const bool known = ::sched_getaffinity(0, sizeof(usable), &usable) == 0;
  const int count = known ? CPU_COUNT(&usable) : 1;
  found.push_back({"host", "processors",
                   std::to_string(count) + " of " + value_of("/proc/cpuinfo", "model name") + ", " +
                       at::get_cpu_capability(),
                   static_cast<double>(count), ""});
  add_memory(found);
  add_environment(found);
  add_limits(found);
  return found;
}

Findings find_disk(const fs::path& folder) {
  Findings found;
  found.push_back(
      size("disk", "free in " + folder.string(), static_cast<double>(io::free_space(folder))));
  const fs::path path = io::temporary_name(folder / "kinora-doctor");
  struct Remove {
    const fs::path& path;
    ~Remove() {
      std::error_code ignored;
      fs::remove(path, ignored);
    }
  } remove{path};
  KINORA_CHECK(io::free_space(folder) > 2 * kDiskBytes, kIo, "[doctor] ", folder, " must have ",
               human_bytes(2 * kDiskBytes), " free to measure its speed");
  const std::vector<std::byte> piece(size_t{1} << 24, std::byte{0x5a});
  const double start = steady_seconds();
  {
    io::FileWriter writer(path, io::FileWriter::Create::kNew);
    for (int64_t done = 0; done < kDiskBytes; done += std::ssize(piece)) {
      writer.append(piece);
    }
    writer.sync();
    writer.close();
  }
  const double write_speed = static_cast<double>(kDiskBytes) / (steady_seconds() - start);
  found.push_back(
      {"disk", "write, to the device", rate(write_speed), write_speed,
       write_speed < kSlowDisk ? "checkpoints will take long: 10.8 GB for DiT-XL/2" : ""});
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor >= 0) {  // not from the cache
    (void)::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    ::close(descriptor);
  }
  const double read_start = steady_seconds();
  const io::FileReader reader(path);
  std::vector<std::byte> buffer(piece.size());
  for (int64_t at = 0; at < kDiskBytes; at += std::ssize(buffer)) {
    reader.read_at(at, buffer);
  }
  const double read_speed = static_cast<double>(kDiskBytes) / (steady_seconds() - read_start);
  found.push_back({"disk", "read", rate(read_speed), read_speed, ""});
  return found;
}

Findings find_gpus() {
  if (!cuda_available()) {
    return {{"gpu", "GPUs", "none: " + cuda_unavailable_reason(), std::nullopt, ""}};
  }
  Findings found;
  const int count = cuda_device_count();
  for (int i = 0; i < count; ++i) {
    const CudaDevice device = cuda_device(i);
    const int64_t free = cuda_free_memory(i);
    found.push_back({"gpu", "GPU " + std::to_string(i),
                     device.name + ", compute capability " + std::to_string(device.major) + "." +
                         std::to_string(device.minor) + ", " + human_bytes(free) + " of " +
                         human_bytes(device.total_memory) + " free",
                     static_cast<double>(free),
                     free < device.total_memory / 2 ? "another process uses its memory" : ""});
    for (int j = 0; j < count; ++j) {
      if (i != j && !cuda_reaches(i, j)) {
        found.push_back({"gpu", "GPU " + std::to_string(i) + " to " + std::to_string(j),
                         "cannot reach its memory", std::nullopt,
                         "what they exchange passes through the host's memory: slow where state "
                         "or tokens are divided"});
      }
    }
  }
  return found;
}

Findings find_compute(at::Device device) {
  at::NoGradGuard no_grad;
  Findings found;
  add_product(device, at::kFloat, "fp32", found);
  add_product(device, at::kBFloat16, "bf16", found);
  const int64_t bytes = device.is_cuda() ? int64_t{1} << 30 : int64_t{1} << 28;
  const at::Tensor from = at::ones({bytes}, at::device(device).dtype(at::kByte));
  const at::Tensor to = at::empty_like(from);
  // A copy reads and writes.
  const double copy =
      2.0 * static_cast<double>(bytes) / seconds_of(device, [&] { to.copy_(from); });
  found.push_back({"speed", "copy within memory, read and written", rate(copy), copy, ""});
  if (device.is_cuda()) {
    const at::Tensor host =
        at::ones({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    const double up =
        static_cast<double>(bytes) / seconds_of(device, [&] { to.copy_(host, true); });
    found.push_back({"speed", "copy from pinned host memory", rate(up), up, ""});
    for (int j = 0; j < cuda_device_count(); ++j) {
      if (j != device.index()) {
        const at::Tensor there = at::empty(
            {bytes},
            at::device(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(j))).dtype(at::kByte));
        const double link =
            static_cast<double>(bytes) / seconds_of(device, [&] { there.copy_(from, true); });
        found.push_back({"speed", "copy to GPU " + std::to_string(j), rate(link), link, ""});
      }
    }
  }
  RunConfig config;
  // One block tells what all run by.
  config.model = models::resolved(parse_config<models::ModelConfig>(
      {}, {"model.name=DiT-XL/2", "model.depth=1", "model.in_channels=4", "model.height=32",
           "model.width=32", "model.num_classes=1000"}));
  config.precision = device.is_cuda() ? Precision::kBf16 : Precision::kFp32;
  const auto model = models::make_model(config.model);
  const auto kernels = set_path(*model, config, device);
  found.push_back({"kernels",
                   "DiT-XL/2 at 256 px, " + std::string(device.is_cuda() ? "bf16" : "fp32"),
                   kernel_summary(config, kernels.get(), 1, device), std::nullopt,
                   device.is_cuda() && kernels == nullptr
                       ? "the fast path needs this build's own kernels for this GPU"
                       : ""});
  if (kernels != nullptr) {
    for (const auto& [library, version] : kernels->library_versions()) {
      found.push_back({"kernels", library, version, std::nullopt, ""});
    }
  }
  return found;
}

Findings describe_collectives(const std::vector<comm::OperationSpeed>& speeds, int64_t ranks) {
  Findings found;
  for (const comm::OperationSpeed& speed : speeds) {
    const std::string latency = human_number(speed.link.latency * 1e6, kDigits) + " us";
    const std::string name = std::string(comm::to_string(speed.operation)) + " of " +
                             std::to_string(ranks) + " ranks, sent by each";
    if (std::isfinite(speed.link.bytes_per_s)) {
      found.push_back({"collectives", name, rate(speed.link.bytes_per_s) + " after " + latency,
                       speed.link.bytes_per_s, ""});
    } else {
      found.push_back({"collectives", name, latency + ", larger messages took no longer",
                       std::nullopt, "the machine is too busy to measure it. Try again"});
    }
  }
  return found;
}

Findings find_collectives(const comm::Group& group, at::Device device) {
  return group.size() == 1 ? Findings()
                           : describe_collectives(comm::measure(group, device), group.size());
}

}  // namespace kinora::train
