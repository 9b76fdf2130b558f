#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kinora/train/bench/benchmark.h"
#include "kinora/train/bench/benchmark_ablation.h"
#include "kinora/train/bench/benchmark_pipeline.h"
#include "kinora/train/bench/benchmark_sample.h"
#include "kinora/train/bench/benchmark_step.h"

/// What `kinora bench` prints: text for people, and the same as JSON.
namespace kinora::apps {

/// For JSON: keys in the order in which they are set.
using Json = nlohmann::ordered_json;

void print(std::ostream& out, const train::StepBenchmark& result, int64_t steps,
           int64_t global_batch, const train::DeviceCeilings& ceilings);
void print(std::ostream& out, const train::SampleBenchmark& result, int64_t batch, int64_t repeats,
           const train::DeviceCeilings& ceilings);

void print(std::ostream& out, const train::PipelineBenchmark& result,
           const train::PipelineBenchmarkOptions& options);

/// What the device did in `calls` calls of `unit` ("step"), by class and by kernel, and for what
/// the host waited.
void print(std::ostream& out, const device::GpuProfile& profile, int64_t calls,
           const std::string& unit);

void print(std::ostream& out, const train::SpreadBenchmark& result, int64_t ranks, int64_t steps);

void print_ablation_head(std::ostream& out, const std::string& device,
                         const train::DeviceCeilings& ceilings);
void print(std::ostream& out, const train::AblationRow& row, double gemm_tflops);

/// What fused attention is worth, where both it and the unfused one were timed.
void print_attention_share(std::ostream& out, const std::vector<train::AblationRow>& rows);

[[nodiscard]] Json to_json(const train::StepBenchmark& result, int64_t global_batch,
                           const train::DeviceCeilings& ceilings);
[[nodiscard]] Json to_json(const train::SampleBenchmark& result, int64_t batch,
                           const train::DeviceCeilings& ceilings);
[[nodiscard]] Json to_json(const train::PipelineBenchmark& result,
                           const train::PipelineBenchmarkOptions& options);
[[nodiscard]] Json to_json(const train::SpreadBenchmark& result, int64_t ranks, int64_t steps);
[[nodiscard]] Json to_json(const device::GpuProfile& profile, int64_t calls);
[[nodiscard]] Json to_json(const std::vector<train::AblationRow>& rows, const std::string& device,
                           int64_t global_batch, const train::DeviceCeilings& ceilings);

}  // namespace kinora::apps
