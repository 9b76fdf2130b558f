#include "kinora/ops/gpu_profile.h"

#include <algorithm>

namespace kinora::ops {
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

/// Streams overlap, so the gaps are those of all of them together.
void add_gaps(std::vector<GpuEvent> events, GpuProfile* profile) {
  if (events.empty()) {
    return;
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
  profile->span_seconds = static_cast<double>(done - first) * 1e-9;
  profile->busy_seconds = static_cast<double>(done - first - idle) * 1e-9;
  profile->longest_gap_seconds = static_cast<double>(longest) * 1e-9;
}

}  // namespace

GpuProfile profile_of(const GpuRecords& records) {
  GpuProfile profile;
  add_totals(records, &profile);
  add_gaps(records.events, &profile);
  for (const std::string& call : records.waits) {
    ++profile.waits[call];
  }
  profile.synchronise_calls = static_cast<int64_t>(records.waits.size());
  profile.dropped = records.dropped;
  return profile;
}

}  // namespace kinora::ops
