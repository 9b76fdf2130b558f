#include "kinora/train/plan/gpu_facts.h"

#include <array>
#include <charconv>

#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora::train {
namespace {

/// A row of the table.
struct Known {
  const char* name;
  const char* of_driver;  // part of the name that the driver gives it
  double gib;
  double half_tflops;
  double fp32_tflops;
  bool bf16;
  bool fp8;
  double gb_per_s;
  double link_gb_per_s;
  double host_gb_per_s;
};

// Arithmetic without sparsity and bandwidth: NVIDIA's data sheets. Memory: what the driver leaves,
// measured on H200, else about what it is known to leave of the sheet's. Links: NVLink at about two
// thirds of one direction, PCI Express (3 on Turing) at about two thirds. To the host: PCI Express
// 5, 4 or 3 with 16 lanes (8 where the sheet has no more) at about four fifths, as measured on
// H100: 52 GB/s each way by its copy engines.
constexpr std::array<Known, 17> kKnown = {{
    {"b200", "B200", 178.0, 2250.0, 75.0, true, true, 8000.0, 600.0, 50.0},
    {"h200", "H200", 139.8, 989.0, 67.0, true, true, 4800.0, 300.0, 50.0},
    {"h100", "H100", 79.1, 989.0, 67.0, true, true, 3350.0, 300.0, 50.0},
    {"a100-80", "A100-SXM4-80GB", 79.1, 312.0, 19.5, true, false, 2039.0, 200.0, 24.0},
    {"a100-40", "A100-SXM4-40GB", 39.4, 312.0, 19.5, true, false, 1555.0, 200.0, 24.0},
    {"l40s", "L40S", 44.4, 362.0, 91.6, true, true, 864.0, 20.0, 24.0},
    {"a6000", "RTX A6000", 47.4, 154.8, 38.7, true, false, 768.0, 20.0, 24.0},
    {"5090", "RTX 5090", 31.3, 209.5, 104.8, true, true, 1792.0, 20.0, 50.0},
    {"4090", "RTX 4090", 23.5, 165.2, 82.6, true, true, 1008.0, 20.0, 24.0},
    {"4070", "RTX 4070", 11.6, 58.3, 29.1, true, true, 504.0, 10.0, 24.0},
    {"4060", "RTX 4060", 7.6, 30.2, 15.1, true, true, 272.0, 5.0, 12.0},
    {"3090", "RTX 3090", 23.6, 71.0, 35.6, true, false, 936.0, 20.0, 24.0},
    {"3060", "RTX 3060", 11.6, 25.5, 12.7, true, false, 360.0, 20.0, 24.0},
    {"3050-8", "RTX 3050", 7.6, 18.2, 9.1, true, false, 224.0, 10.0, 12.0},
    {"2080ti", "RTX 2080 Ti", 10.6, 53.8, 13.4, false, false, 616.0, 10.0, 12.0},
    {"2070", "RTX 2070", 7.6, 29.9, 7.5, false, false, 448.0, 10.0, 12.0},
    {"t4", "Tesla T4", 14.6, 65.0, 8.1, false, false, 320.0, 10.0, 12.0},
}};

GpuFacts facts_of(const Known& known) {
  return {.name = known.name,
          .memory = static_cast<int64_t>(known.gib * kGiB),
          .half_flops = known.half_tflops * 1e12,
          .fp32_flops = known.fp32_tflops * 1e12,
          .bf16 = known.bf16,
          .fp8 = known.fp8,
          .bytes_per_s = known.gb_per_s * 1e9,
          .link_bytes_per_s = known.link_gb_per_s * 1e9,
          .host_bytes_per_s = known.host_gb_per_s * 1e9};
}

}  // namespace

GpuFacts find_gpu(std::string_view asked) {
  for (const Known& known : kKnown) {
    if (asked == known.name) {
      return facts_of(known);
    }
  }
  double gib = 0.0;
  const auto parsed = std::from_chars(asked.data(), asked.data() + asked.size(), gib);
  const bool is_number = parsed.ec == std::errc() && parsed.ptr == asked.data() + asked.size();
  KINORA_CHECK(is_number && gib > 0.0 && gib < 1e6, kConfig, "[plan] --gpu must be ", gpu_names(),
               " or a number of GiB, got ", asked);
  return {.name = "a GPU of " + std::string(asked) + " GiB",
          .memory = static_cast<int64_t>(gib * kGiB),
          .fp8 = true};
}

GpuFacts gpu_of_driver(std::string_view name, int64_t memory) {
  for (const Known& known : kKnown) {
    if (name.find(known.of_driver) != std::string_view::npos) {
      GpuFacts facts = facts_of(known);
      facts.memory = memory;
      return facts;
    }
  }
  return {.name = std::string(name), .memory = memory, .fp8 = true};
}

std::string gpu_names() {
  std::string names;
  for (const Known& known : kKnown) {
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  return names;
}

}  // namespace kinora::train
