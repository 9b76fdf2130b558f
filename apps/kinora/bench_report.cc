#include "apps/kinora/bench_report.h"

#include <algorithm>
#include <iomanip>
#include <ostream>
#include <sstream>

#include "kinora/core/build_info.h"
#include "kinora/core/counted.h"
#include "kinora/core/text.h"

namespace kinora::apps {
namespace {

constexpr size_t kMaxKernels = 15;

/// Text of a number with `digits` significant digits.
std::string digits(double value, int digits = 4) {
  std::ostringstream text;
  text << std::setprecision(digits) << value;
  return text.str();
}

/// Text with `decimals` digits behind the point, to stand in columns.
std::string fixed(double value, int decimals) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(decimals) << value;
  return text.str();
}

std::string right(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string left(const std::string& text, size_t width) {
  return text + std::string(width - std::min(width, text.size()), ' ');
}

/// "+20 %" of 1.2.
std::string signed_percent(double ratio) {
  return (ratio >= 1.0 ? "+" : "") + digits(100.0 * (ratio - 1.0), 3) + " %";
}

double share(double part, double whole) {
  return whole > 0.0 ? part / whole : 0.0;
}

std::string memory(int64_t bytes) {
  return bytes > 0 ? human_bytes(bytes) : "not measured on the CPU";
}

std::string memory(const train::StepBenchmark& result) {
  return memory(result.peak_memory) +
         (result.peak_memory > 0
              ? ", " + human_bytes(result.peak_reserved) + " with what its allocator held, and " +
                    human_bytes(result.used_memory) + " of the GPU at the end"
              : "");
}

void line(std::ostream& out, const char* name, const std::string& value) {
  out << std::left << std::setw(15) << name << value << '\n';
}

std::string gemm_speed(const train::DeviceCeilings& ceilings) {
  return digits(ceilings.gemm_tflops) + " TFLOP/s of a large matrix product" +
         (ceilings.fp8_gemm_tflops > 0.0 ? ", in fp8 " + digits(ceilings.fp8_gemm_tflops) : "");
}

std::string of_ceiling(double tflops, const train::DeviceCeilings& ceilings) {
  return digits(tflops) + ", " + digits(100.0 * share(tflops, ceilings.gemm_tflops)) +
         " % of what a large matrix product reaches here (" + digits(ceilings.gemm_tflops) +
         (ceilings.fp8_gemm_tflops > 0.0 ? ", in fp8 " + digits(ceilings.fp8_gemm_tflops) : "") +
         ")";
}

std::string copy_speed(const train::DeviceCeilings& ceilings) {
  return digits(ceilings.copy_bytes_per_s / 1e9) + " GB/s read and written by a large copy";
}

std::string waits_text(const device::GpuProfile& profile, int64_t calls, const std::string& unit) {
  std::ostringstream text;
  text << "host waits: " << profile.synchronise_calls << " synchronise calls and "
       << profile.device_to_host_copies << " device-to-host copies in " << calls << ' ' << unit
       << 's';
  for (const auto& [call, count] : profile.waits) {
    text << "\n  " << count << " x " << call;
  }
  if (profile.pageable_copies > 0) {
    text << "\n  " << profile.pageable_copies
         << " copies of memory that is not pinned may wait, too";
  }
  if (profile.dropped > 0) {
    text << "\n  " << profile.dropped << " records were lost: the figures above are too small";
  }
  return text.str();
}

void add_ceilings(Json* json, const train::DeviceCeilings& ceilings) {
  (*json)["gemm_tflops"] = ceilings.gemm_tflops;
  (*json)["fp8_gemm_tflops"] = ceilings.fp8_gemm_tflops;
  (*json)["copy_bytes_per_s"] = ceilings.copy_bytes_per_s;
}

Json row_json(const train::AblationRow& row) {
  Json json;
  json["switch"] = row.name;
  if (row.result) {
    json["kernels"] = row.result->kernels;
    json["ms"] = row.result->step_seconds * 1e3;
    json["samples_per_s"] = row.result->samples_per_s;
    json["ratio"] = row.ratio;
    json["tflops"] = row.result->model_tflops;
    json["peak_memory"] = row.result->peak_memory;
    json["last_loss"] = row.result->last_loss;
  }
  json["note"] = row.note;
  return json;
}

}  // namespace

void print(std::ostream& out, const train::StepBenchmark& result, int64_t steps,
           int64_t global_batch, const train::DeviceCeilings& ceilings) {
  line(out, "device", result.device);
  line(out, "kernels", result.kernels);
  line(out, "step",
       digits(result.step_seconds * 1e3) + " ms (" + std::to_string(steps) + " steps of " +
           std::to_string(global_batch) + " samples, the median block of them)");
  if (result.texts) {
    const double beyond = result.step_seconds - result.texts->cached_step_seconds;
    line(out, "texts",
         "encoded in each step; on cached ones " + digits(result.texts->cached_step_seconds * 1e3) +
             " ms, so " + digits(beyond * 1e3) + " ms more (" +
             digits(100.0 * beyond / result.texts->cached_step_seconds, 3) + " %), " +
             digits(beyond / result.texts->encoder_seconds, 3) + " times the encoder's " +
             digits(result.texts->encoder_seconds * 1e3) + " ms alone");
  }
  if (!result.far_updates.empty()) {
    line(out, "updates", result.far_updates);
  }
  line(out, "samples/s", digits(result.samples_per_s));
  line(out, "model TFLOP/s", of_ceiling(result.model_tflops, ceilings));
  line(out, "copy", copy_speed(ceilings));
  line(out, "peak memory", memory(result));
}

void print(std::ostream& out, const train::SampleBenchmark& result, int64_t batch, int64_t repeats,
           const train::DeviceCeilings& ceilings) {
  line(out, "device", result.device);
  line(out, "kernels", result.kernels);
  line(out, "weights", result.weights);
  line(out, "sampler", result.sampler);
  if (!result.ranks.empty()) {
    line(out, "ranks", result.ranks);
  }
  line(out, "run",
       digits(result.seconds * 1e3) + " ms (median of " + std::to_string(repeats) + ", " +
           std::to_string(batch) + ' ' + result.unit + ")");
  line(out, "step", digits(result.seconds * 1e3 / static_cast<double>(result.steps)) + " ms");
  line(out, (result.unit + "/s").c_str(),
       digits(result.samples_per_s) + ", " + digits(1.0 / result.samples_per_s) + " s each");
  if (result.cache) {
    line(out, result.cache->key.c_str(), result.cache->use);
    line(out, "without it",
         digits(result.cache->seconds_without * 1e3) + " ms, " +
             digits(result.cache->seconds_without / result.seconds, 3) +
             " times as long; samples differ by " + digits(result.cache->relative_error, 3) +
             " of their norm (" + result.weights + ")");
  }
  line(out, "model TFLOP/s",
       result.model_tflops ? of_ceiling(*result.model_tflops, ceilings)
                           : "not counted: not all steps compute the same");
  line(out, "copy", copy_speed(ceilings));
  line(out, "peak memory", memory(result.peak_memory));
}

void print(std::ostream& out, const train::PipelineBenchmark& result,
           const train::PipelineBenchmarkOptions& options) {
  line(out, "device", result.device);
  line(out, "pipeline",
       "T5-XXL of " + std::to_string(options.text_layers) + " layers on " +
           std::to_string(options.caption_tokens) + " tokens, " + std::to_string(result.steps) +
           " steps, guidance " + digits(result.guidance) +
           (result.graphs ? ", the loop as a CUDA graph" : ", no CUDA graphs"));
  line(out, "run",
       digits(result.seconds * 1e3) + " ms (" + std::to_string(options.batch) +
           " pictures, the median of " + std::to_string(options.repeats) + ")");
  line(out, "stages",
       "encode " + digits(result.encode_seconds * 1e3) + " ms, sample " +
           digits(result.sample_seconds * 1e3) + ", decode " + digits(result.decode_seconds * 1e3) +
           ", each waited for");
  line(out, "peak memory", memory(result.peak_memory));
}

void print(std::ostream& out, const device::GpuProfile& profile, int64_t calls,
           const std::string& unit) {
  const auto each = static_cast<double>(calls);
  const double span = profile.span_seconds;
  const auto row = [&](const std::string& name, double seconds, int64_t launches) {
    out << right(fixed(seconds * 1e3 / each, 3), 12)
        << right(fixed(100.0 * share(seconds, span), 1), 9)
        << right(launches < 0 ? "" : fixed(static_cast<double>(launches) / each, 1), 12) << "  "
        << name << '\n';
  };
  out << "\nprofile of " << calls << ' ' << unit << "s: " << digits(span * 1e3 / each) << " ms a "
      << unit << " while traced\n"
      << right("ms/" + unit, 12) << right("%", 9) << right("launches", 12) << "  class\n";
  for (const device::ClassTotal& total : profile.classes) {
    row(std::string(to_string(total.kind)), total.seconds, total.launches);
  }
  row("nothing runs", span - profile.busy_seconds, -1);
  if (profile.exposed_communication_seconds > 0.0) {
    row("communication alone", profile.exposed_communication_seconds, -1);
  }
  out << '\n' << right("ms/" + unit, 12) << right("%", 9) << right("launches", 12) << "  kernel\n";
  for (size_t i = 0; i < std::min(profile.kernels.size(), kMaxKernels); ++i) {
    const device::KernelTotal& total = profile.kernels[i];
    row(left(std::string(to_string(total.kind)), 12) + device::short_kernel_name(total.name, 100),
        total.seconds, total.launches);
  }
  out << waits_text(profile, calls, unit) << '\n';
}

void print(std::ostream& out, const train::SpreadBenchmark& result, int64_t ranks, int64_t steps) {
  line(out, "device", result.device + ", " + counted(ranks, "rank"));
  line(out, "steps",
       std::to_string(steps) + ", each of " + counted(result.batches, "batch", "batches"));
  if (result.peak_memory > 0) {
    line(out, "peak memory", human_bytes(result.peak_memory));
  }
  out << '\n'
      << result.seconds << "\n\n"
      << left("ranks a sample", 16) << right("ms a step", 12) << right("samples/s", 12)
      << right("dynamic is", 12) << '\n';
  for (const train::SpreadRow& row : result.rows) {
    out << left(row.ranks == 0 ? "dynamic" : std::to_string(row.ranks), 16);
    if (row.refused.empty()) {
      out << right(fixed(row.step_seconds * 1e3, 1), 12) << right(fixed(row.samples_per_s, 1), 12)
          << right(row.ranks == 0 ? "" : fixed(row.slowdown, 3) + "x", 12) << '\n';
    } else {
      out << "  no memory for " << row.refused << '\n';
    }
  }
}

void print_ablation_head(std::ostream& out, const std::string& device,
                         const train::DeviceCeilings& ceilings) {
  line(out, "device", device);
  line(out, "GEMM", gemm_speed(ceilings));
  line(out, "copy", copy_speed(ceilings));
  out << '\n'
      << left("switch", 24) << right("ms", 10) << right("samples/s", 12) << right("ratio", 8)
      << right("% of GEMM", 11) << right("peak memory", 14) << '\n';
}

void print(std::ostream& out, const train::AblationRow& row, double gemm_tflops) {
  out << left(row.name, 24);
  if (row.result) {
    const train::StepBenchmark& result = *row.result;
    out << right(fixed(result.step_seconds * 1e3, 2), 10)
        << right(fixed(result.samples_per_s, 1), 12)
        << right(row.ratio > 0.0 ? fixed(row.ratio, 3) : "-", 8)
        << right(fixed(100.0 * share(result.model_tflops, gemm_tflops), 1), 11)
        << right(result.peak_memory > 0 ? human_bytes(result.peak_memory) : "-", 14);
  }
  out << (row.note.empty() ? "" : "  " + row.note) << std::endl;  // rows take minutes
}

void print_attention_share(std::ostream& out, const std::vector<train::AblationRow>& rows) {
  const auto unfused = std::find_if(rows.begin(), rows.end(), [](const train::AblationRow& row) {
    return row.name == "kernels.attention=off";
  });
  if (unfused == rows.end() || !unfused->result || !rows.front().result) {
    return;
  }
  const train::StepBenchmark& fused = *rows.front().result;
  const double speed = fused.samples_per_s / unfused->result->samples_per_s;
  const double memory = share(static_cast<double>(fused.peak_memory),
                              static_cast<double>(unfused->result->peak_memory));
  out << "\nfused attention against unfused: " << signed_percent(speed) << " speed of the step, "
      << signed_percent(memory) << " peak memory\n";
}

Json to_json(const train::StepBenchmark& result, int64_t global_batch,
             const train::DeviceCeilings& ceilings) {
  Json json;
  json["device"] = result.device;
  json["kernels"] = result.kernels;
  json["commit"] = build_info().commit;
  json["global_batch"] = global_batch;
  json["ms"] = result.step_seconds * 1e3;
  json["samples_per_s"] = result.samples_per_s;
  json["tflops"] = result.model_tflops;
  add_ceilings(&json, ceilings);
  json["peak_memory"] = result.peak_memory;
  json["peak_reserved"] = result.peak_reserved;
  json["used_memory"] = result.used_memory;
  json["last_loss"] = result.last_loss;
  if (result.texts) {
    json["cached_ms"] = result.texts->cached_step_seconds * 1e3;
    json["encoder_ms"] = result.texts->encoder_seconds * 1e3;
  }
  json["products"] = result.products;
  return json;
}

Json to_json(const train::SampleBenchmark& result, int64_t batch,
             const train::DeviceCeilings& ceilings) {
  Json json;
  json["device"] = result.device;
  json["kernels"] = result.kernels;
  json["commit"] = build_info().commit;
  json["weights"] = result.weights;
  json["sampler"] = result.sampler;
  json["batch"] = batch;
  json["steps"] = result.steps;
  json["ms"] = result.seconds * 1e3;
  json["ranks"] = result.ranks;
  json["samples_per_s"] = result.samples_per_s;
  json["seconds_each"] = 1.0 / result.samples_per_s;
  if (result.cache) {
    json["cache"] = {{"use", result.cache->use},
                     {"ms_without", result.cache->seconds_without * 1e3},
                     {"relative_error", result.cache->relative_error}};
  }
  json["tflops"] = result.model_tflops ? Json(*result.model_tflops) : Json();
  add_ceilings(&json, ceilings);
  json["peak_memory"] = result.peak_memory;
  return json;
}

Json to_json(const train::PipelineBenchmark& result,
             const train::PipelineBenchmarkOptions& options) {
  Json json;
  json["device"] = result.device;
  json["commit"] = build_info().commit;
  json["batch"] = options.batch;
  json["caption_tokens"] = options.caption_tokens;
  json["text_layers"] = options.text_layers;
  json["steps"] = result.steps;
  json["guidance"] = result.guidance;
  json["graphs"] = result.graphs;
  json["ms"] = result.seconds * 1e3;
  json["encode_ms"] = result.encode_seconds * 1e3;
  json["sample_ms"] = result.sample_seconds * 1e3;
  json["decode_ms"] = result.decode_seconds * 1e3;
  json["peak_memory"] = result.peak_memory;
  return json;
}

Json to_json(const train::SpreadBenchmark& result, int64_t ranks, int64_t steps) {
  Json json = {{"device", result.device},
               {"commit", build_info().commit},
               {"ranks", ranks},
               {"steps", steps},
               {"batches", result.batches},
               {"peak_memory", result.peak_memory},
               {"rows", Json::array()}};
  for (const train::SpreadRow& row : result.rows) {
    Json& of = json["rows"].emplace_back(Json{{"ranks_a_sample", row.ranks}});
    if (!row.refused.empty()) {
      of["refused"] = row.refused;
      continue;
    }
    of["step_ms"] = row.step_seconds * 1e3;
    of["samples_per_s"] = row.samples_per_s;
    of["slowdown"] = row.slowdown;
  }
  return json;
}

Json to_json(const device::GpuProfile& profile, int64_t calls) {
  const auto each = static_cast<double>(calls);
  Json json;
  json["calls"] = calls;
  json["ms"] = profile.span_seconds * 1e3 / each;
  json["busy_ms"] = profile.busy_seconds * 1e3 / each;
  json["exposed_communication_ms"] = profile.exposed_communication_seconds * 1e3 / each;
  json["longest_gap_ms"] = profile.longest_gap_seconds * 1e3;
  json["synchronise_calls"] = profile.synchronise_calls;
  json["device_to_host_copies"] = profile.device_to_host_copies;
  json["pageable_copies"] = profile.pageable_copies;
  json["dropped_records"] = profile.dropped;
  json["waits"] = profile.waits;
  json["classes"] = Json::array();
  for (const device::ClassTotal& total : profile.classes) {
    json["classes"].push_back({{"class", to_string(total.kind)},
                               {"ms", total.seconds * 1e3 / each},
                               {"launches", static_cast<double>(total.launches) / each}});
  }
  json["kernels"] = Json::array();
  for (const device::KernelTotal& total : profile.kernels) {
    json["kernels"].push_back({{"name", total.name},
                               {"class", to_string(total.kind)},
                               {"ms", total.seconds * 1e3 / each},
                               {"launches", static_cast<double>(total.launches) / each},
                               {"bytes", static_cast<double>(total.bytes) / each}});
  }
  return json;
}

Json to_json(const std::vector<train::AblationRow>& rows, const std::string& device,
             int64_t global_batch, const train::DeviceCeilings& ceilings) {
  Json json;
  json["device"] = device;
  json["commit"] = build_info().commit;
  json["global_batch"] = global_batch;
  add_ceilings(&json, ceilings);
  json["rows"] = Json::array();
  for (const train::AblationRow& row : rows) {
    json["rows"].push_back(row_json(row));
  }
  return json;
}

}  // namespace kinora::apps
