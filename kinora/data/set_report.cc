#include "kinora/data/set_report.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

#include "kinora/core/counted.h"
#include "kinora/core/printable.h"
#include "kinora/core/text.h"
#include "kinora/data/causes.h"

namespace kinora::data {
namespace {

struct Steps {
  int64_t batch = 0;
  int64_t whole = 0;  // steps that a single epoch fills
  int64_t rest = 0;   // samples that share a step with the next epoch
};

// For a quarter of the batch, half of it, ... four times as much.
std::vector<Steps> steps_of(const SetReport& report, const BatchChoice& choice) {
  const int64_t count = std::max<int64_t>(0, report.num_usable - choice.num_held_out);
  std::vector<Steps> all;
  for (const int64_t batch : {choice.global_batch / 4, choice.global_batch / 2, choice.global_batch,
                              2 * choice.global_batch, 4 * choice.global_batch}) {
    if (batch > 0 && (all.empty() || all.back().batch != batch)) {
      all.push_back({batch, count / batch, count % batch});
    }
  }
  return all;
}

void print_groups(std::ostream& out, const NamesByCause& groups, int64_t most_names) {
  for (const auto& [cause, names] : groups) {
    out << "    " << count_of(cause, names) << '\n';
    for (size_t i = 0; i < names.size(); ++i) {
      if (std::cmp_equal(i, most_names)) {
        out << "      and " << names.size() - i << " more (--all names them)\n";
        break;
      }
      out << "      " << printable_line(names[i]) << '\n';
    }
  }
}

std::string size_text(const std::tuple<int64_t, int64_t, int64_t>& size, bool is_video) {
  const auto [height, width, frames] = size;
  std::string text = std::to_string(height) + " x " + std::to_string(width);
  if (is_video) {
    text += frames == 0 ? ", ? frames" : ", " + counted(frames, "frame");
  }
  return text;
}

void print_sizes(std::ostream& out, const SetReport& report) {
  std::vector<std::pair<int64_t, std::string>> sizes;
  for (const auto& [size, count] : report.sizes) {
    sizes.emplace_back(count, size_text(size, report.is_video));
  }
  std::stable_sort(sizes.begin(), sizes.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  constexpr size_t kMost = 12;
  out << "  sizes (height x width): " << sizes.size() << '\n';
  for (size_t i = 0; i < std::min(kMost, sizes.size()); ++i) {
    out << "    " << sizes[i].second << ": " << sizes[i].first << '\n';
  }
  if (sizes.size() > kMost) {
    out << "    and " << sizes.size() - kMost << " others\n";
  }
}

nlohmann::ordered_json json_of(const BucketReport& report) {
  nlohmann::ordered_json json = {{"seed", report.seed},
                                 {"batches_per_step", report.batches_per_step},
                                 {"samples", report.num_samples},
                                 {"taken", report.num_taken()},
                                 {"not_kept", report.num_not_kept}};
  json["left_out"] = nlohmann::json::array();
  for (const MisfitGroup& group : report.left_out) {
    json["left_out"].push_back(
        {{"cause", group.cause}, {"samples", group.count}, {"first", group.first}});
  }
  json["table"] = nlohmann::json::array();
  for (const BucketUse& use : report.buckets) {
    const Bucket& bucket = use.bucket;
    json["table"].push_back({{"resolution", bucket.resolution},
                             {"frames", bucket.frames},
                             {"ratio", bucket.ratio},
                             {"height", bucket.height},
                             {"width", bucket.width},
                             {"batch", bucket.batch},
                             {"samples", use.num_samples},
                             {"steps", use.steps()},
                             {"waiting", use.num_waiting()}});
  }
  json["scaled"] = nlohmann::json::array();
  for (const ScaledBatches& scaled : report.scaled()) {
    json["scaled"].push_back({{"factor", scaled.factor},
                              {"steps", scaled.steps},
                              {"waiting", scaled.num_waiting},
                              {"short_buckets", scaled.num_short_buckets}});
  }
  return json;
}

}  // namespace

SetReport report_on(const Source& source, const Index& index, const Quarantine& quarantine) {
  SetReport report;
  report.num_samples = source.size();
  report.num_classes = source.num_classes();
  report.is_video = source.is_video();
  for (const PassedOver& one : source.passed_over()) {
    if (!one.is_rejected) {
      report.beside.push_back(one);
    } else if (!quarantine.contains(one.name)) {
      report.rejected.emplace(one.name, one.cause);
    }
  }
  for (int64_t i = 0; i < source.size(); ++i) {
    const std::string name = source.sample_name(i);
    const std::optional<IndexEntry> known = index.find(name);
    if (quarantine.contains(name)) {
      ++report.num_quarantined;
    } else if (!known) {
      ++report.num_unknown;
    } else if (!known->is_usable()) {
      report.rejected.emplace(name, known->cause);
    } else {
      const SampleFacts& facts = known->facts;
      ++report.num_usable;
      report.num_with_caption += facts.caption_length > 0 ? 1 : 0;
      ++report.sizes[{facts.height, facts.width, facts.num_frames}];
    }
  }
  return report;
}

void print(std::ostream& out, const SetReport& report, const BatchChoice& batch,
           int64_t most_names) {
  out << "samples " << report.num_samples << ", classes " << report.num_classes << '\n'
      << "  usable " << report.num_usable << ", with a caption " << report.num_with_caption << '\n';
  if (report.num_quarantined > 0) {
    out << "  in quarantine " << report.num_quarantined << '\n';
  }
  if (report.num_unknown > 0) {
    out << "  not looked at yet " << report.num_unknown << '\n';
  }
  NamesByCause causes;
  for (const auto& [name, cause] : report.rejected) {
    causes[cause_kind(cause, name)].push_back(name);
  }
  out << "  rejected " << report.rejected.size() << '\n';
  print_groups(out, causes, most_names);
  out << "  beside them " << report.beside.size() << '\n';
  print_groups(out, group_by_cause(report.beside), most_names);
  print_sizes(out, report);
  if (batch.buckets) {
    print(out, *batch.buckets);
    return;
  }
  out << "  batches (steps an epoch + samples of a step shared with the next one)\n";
  for (const Steps& steps : steps_of(report, batch)) {
    out << "    " << steps.batch << ": " << steps.whole << " + " << steps.rest
        << (batch.is_configured && steps.batch == batch.global_batch ? "  <- as configured" : "")
        << (steps.whole == 0 && steps.rest > 0 ? "  a step sees samples twice" : "") << '\n';
  }
}

std::string to_json(const SetReport& report, const BatchChoice& batch) {
  nlohmann::ordered_json json = {
      {"samples", report.num_samples},           {"usable", report.num_usable},
      {"with_caption", report.num_with_caption}, {"classes", report.num_classes},
      {"quarantined", report.num_quarantined},   {"unknown", report.num_unknown}};
  json["rejected"] = nlohmann::json::array();
  for (const auto& [name, cause] : report.rejected) {
    json["rejected"].push_back({{"name", name}, {"cause", cause}});
  }
  json["beside"] = nlohmann::json::array();
  for (const PassedOver& one : report.beside) {
    json["beside"].push_back({{"name", one.name}, {"cause", one.cause}});
  }
  json["sizes"] = nlohmann::json::array();
  for (const auto& [size, count] : report.sizes) {
    const auto [height, width, frames] = size;
    json["sizes"].push_back(
        {{"height", height}, {"width", width}, {"frames", frames}, {"samples", count}});
  }
  if (batch.buckets) {
    json["buckets"] = json_of(*batch.buckets);
  } else {
    json["batches"] = nlohmann::json::array();
    for (const Steps& steps : steps_of(report, batch)) {
      json["batches"].push_back(
          {{"global_batch", steps.batch}, {"steps", steps.whole}, {"rest", steps.rest}});
    }
  }
  return json.dump(2, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace kinora::data
