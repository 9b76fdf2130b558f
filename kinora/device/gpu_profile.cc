#include "kinora/device/gpu_profile.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <sstream>
#include <utility>

namespace kinora::device {
namespace {

std::string name_of(const GpuRecords& records, const GpuEvent& event) {
  switch (event.kind) {
    case GpuEvent::Kind::kKernel:
      return records.names.at(event.name);
    case GpuEvent::Kind::kHostToDevice:
      return "[copy host to device]";
    case GpuEvent::Kind::kDeviceToHost:
      return "[copy device to host]";
    case GpuEvent::Kind::kDeviceToDevice:
      return "[copy device to device]";
    case GpuEvent::Kind::kOtherCopy:
      return "[copy]";
    case GpuEvent::Kind::kMemset:
      return "[memset]";
  }
  return "?";
}

/// The same work, as a key that is cheap to compare.
std::pair<GpuEvent::Kind, size_t> identity(const GpuEvent& event) {
  return {event.kind, event.kind == GpuEvent::Kind::kKernel ? event.name : 0};
}

template <typename Total>
void sort_by_cost(std::vector<Total>* totals) {
  std::stable_sort(totals->begin(), totals->end(),
                   [](const Total& a, const Total& b) { return a.seconds > b.seconds; });
}

void add_totals(const GpuRecords& records, GpuProfile* profile) {
  std::map<std::pair<GpuEvent::Kind, size_t>, KernelTotal> by_name;
  for (const GpuEvent& event : records.events) {
    KernelTotal& total = by_name[identity(event)];
    ++total.launches;
    total.seconds += static_cast<double>(event.end_ns - event.start_ns) * 1e-9;
    total.bytes += event.bytes;
    profile->device_to_host_copies += event.kind == GpuEvent::Kind::kDeviceToHost ? 1 : 0;
    profile->pageable_copies += event.pageable ? 1 : 0;
  }
  std::map<KernelClass, ClassTotal> by_class;
  for (auto& [key, total] : by_name) {
    const bool is_kernel = key.first == GpuEvent::Kind::kKernel;
    total.name = name_of(records, {.kind = key.first, .name = key.second});
    total.kind = is_kernel ? classify_kernel(total.name) : KernelClass::kCopy;
    ClassTotal& sum = by_class[total.kind];
    sum.kind = total.kind;
    sum.launches += total.launches;
    sum.seconds += total.seconds;
    profile->kernels.push_back(total);
  }
  for (const auto& [kind, total] : by_class) {
    profile->classes.push_back(total);
  }
  sort_by_cost(&profile->kernels);
  sort_by_cost(&profile->classes);
}

struct Coverage {
  double span_seconds = 0.0;
  double busy_seconds = 0.0;
  double longest_gap_seconds = 0.0;
};

/// Streams overlap, so the gaps are those of all of them together.
Coverage coverage_of(std::vector<GpuEvent> events) {
  if (events.empty()) {
    return {};
  }
  std::sort(events.begin(), events.end(),
            [](const GpuEvent& a, const GpuEvent& b) { return a.start_ns < b.start_ns; });
  const int64_t first = events.front().start_ns;
  int64_t done = first;
  int64_t idle = 0;
  int64_t longest = 0;
  for (const GpuEvent& event : events) {
    const int64_t gap = std::max<int64_t>(event.start_ns - done, 0);
    idle += gap;
    longest = std::max(longest, gap);
    done = std::max(done, event.end_ns);
  }
  return {.span_seconds = static_cast<double>(done - first) * 1e-9,
          .busy_seconds = static_cast<double>(done - first - idle) * 1e-9,
          .longest_gap_seconds = static_cast<double>(longest) * 1e-9};
}

void add_coverage(const GpuRecords& records, GpuProfile* profile) {
  const Coverage all = coverage_of(records.events);
  profile->span_seconds = all.span_seconds;
  profile->busy_seconds = all.busy_seconds;
  profile->longest_gap_seconds = all.longest_gap_seconds;
  std::vector<GpuEvent> computing;
  std::copy_if(records.events.begin(), records.events.end(), std::back_inserter(computing),
               [&records](const GpuEvent& event) {
                 return event.kind != GpuEvent::Kind::kKernel ||
                        classify_kernel(records.names.at(event.name)) !=
                            KernelClass::kCommunication;
               });
  profile->exposed_communication_seconds =
      all.busy_seconds - coverage_of(std::move(computing)).busy_seconds;
}

/// For a string in JSON: kernels' names are ASCII but may hold quotes.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
    }
    result += c;
  }
  return result;
}

}  // namespace

GpuProfile profile_of(const GpuRecords& records) {
  GpuProfile profile;
  add_totals(records, &profile);
  add_coverage(records, &profile);
  for (const std::string& call : records.waits) {
    ++profile.waits[call];
  }
  profile.synchronise_calls = static_cast<int64_t>(records.waits.size());
  profile.dropped = records.dropped;
  return profile;
}

std::string chrome_trace(const GpuRecords& records, int64_t rank) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const GpuEvent& event : records.events) {
    first = std::min(first, event.start_ns);
  }
  std::ostringstream text;
  text.precision(3);
  text << std::fixed << "{\"traceEvents\": [";
  const char* separator = "\n";
  for (const GpuEvent& event : records.events) {
    const std::string name = name_of(records, event);
    const bool is_kernel = event.kind == GpuEvent::Kind::kKernel;
    constexpr double kMicroseconds = 1e-3;
    text << std::exchange(separator, ",\n") << "{\"ph\": \"X\", \"pid\": " << rank
         << ", \"tid\": " << event.stream
         << ", \"ts\": " << static_cast<double>(event.start_ns - first) * kMicroseconds
         << ", \"dur\": " << static_cast<double>(event.end_ns - event.start_ns) * kMicroseconds
         << ", \"cat\": \"" << to_string(is_kernel ? classify_kernel(name) : KernelClass::kCopy)
         << "\", \"name\": \"" << escaped(is_kernel ? short_kernel_name(name, 120) : name) << "\"}";
  }
  text << "\n]}\n";
  return text.str();
}

}  // namespace kinora::device
