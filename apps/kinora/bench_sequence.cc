// kinora bench sequence: what sequence parallelism costs and is worth, in attention layers alone.

#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/kinora/commands.h"
#include "apps/kinora/ranks.h"
#include "kinora/core/build_info.h"
#include "kinora/core/text.h"
#include "kinora/device/device.h"
#include "kinora/train/bench/benchmark_sequence.h"

namespace kinora::apps {
namespace {

using Json = nlohmann::ordered_json;

/// The schemes with one number of tokens.
struct Point {
  int64_t tokens_a_frame;
  std::vector<train::SequenceRow> rows;
};

double exposed_share(const train::SequenceRow& row) {
  return row.exposed_s() / row.step_s;
}

Json to_json(const Point& point, const train::SequenceRow& row) {
  Json json;
  json["tokens"] = point.tokens_a_frame;
  json["scheme"] = row.scheme;
  if (!row.refused.empty()) {
    json["refused"] = row.refused;
    return json;
  }
  json["ms"] = row.step_s * 1e3;
  json["compute_ms"] = row.compute_s * 1e3;
  json["exposed_ms"] = row.exposed_s() * 1e3;
  json["exposed_share"] = exposed_share(row);
  json["communication_ms"] = row.communication_s * 1e3;
  json["calls"] = row.calls;
  json["bytes"] = row.bytes;
  json["kept_bytes"] = row.kept_bytes;
  json["peak_bytes"] = row.peak_bytes;
  if (row.efficiency > 0.0) {
    json["efficiency"] = row.efficiency;
    json["difference"] = row.difference;
  }
  return json;
}

Json to_json(const BenchSequenceArguments& arguments, const std::string& device, int64_t ranks,
             const std::vector<Point>& points) {
  const train::SequenceWork& work = arguments.work;
  Json json = {
      {"device", device},          {"commit", build_info().commit}, {"ranks", ranks},
      {"frames", work.num_frames}, {"hidden", work.hidden},         {"heads", work.heads},
      {"depth", work.depth},       {"steps", work.steps},           {"rows", Json::array()}};
  for (const Point& point : points) {
    for (const train::SequenceRow& row : point.rows) {
      json["rows"].push_back(to_json(point, row));
    }
  }
  return json;
}

void print_head(const BenchSequenceArguments& arguments, const std::string& device, int64_t ranks) {
  const train::SequenceWork& work = arguments.work;
  std::cout << device << ", ranks " << ranks << ", frames " << work.num_frames << ", hidden "
            << work.hidden << ", heads " << work.heads << ", depth " << work.depth << "\n\n"
            << std::right;
  for (const char* column :
       {"tokens", "scheme", "ms", "compute", "exposed", "exposed %", "comm alone", "calls", "sent",
        "kept", "peak", "effic. %", "difference"}) {
    std::cout << std::setw(11) << column;
  }
  std::cout << '\n';
}

void print(const Point& point) {
  std::cout << std::fixed;
  for (const train::SequenceRow& row : point.rows) {
    std::cout << std::setw(11) << point.tokens_a_frame << std::setw(11) << row.scheme;
    if (!row.refused.empty()) {
      std::cout << "  " << row.refused << '\n';
      continue;
    }
    std::cout << std::setprecision(3);
    for (const double seconds : {row.step_s, row.compute_s, row.exposed_s()}) {
      std::cout << std::setw(11) << seconds * 1e3;
    }
    std::cout << std::setw(11) << std::setprecision(1) << 100.0 * exposed_share(row)
              << std::setw(11) << std::setprecision(3) << row.communication_s * 1e3 << std::setw(11)
              << row.calls;
    for (const int64_t bytes : {row.bytes, row.kept_bytes, row.peak_bytes}) {
      std::cout << std::setw(11) << human_bytes(bytes);
    }
    if (row.efficiency > 0.0) {
      std::cout << std::setw(11) << std::setprecision(1) << 100.0 * row.efficiency << std::setw(11)
                << std::scientific << row.difference << std::fixed;
    }
    std::cout << std::endl;  // the next point may take minutes
  }
}

}  // namespace

int run(const BenchSequenceArguments& arguments) {
  const std::optional<comm::World> world = own_rank(arguments.ranks);
  if (!world) {
    return launch(arguments.ranks, arguments.device);
  }
  on_rank(*world, arguments.device, [&](const comm::Group& group, at::Device device) {
    const bool prints = group.rank() == 0 && !arguments.json;
    if (prints) {
      print_head(arguments, device::describe(device), group.size());
    }
    std::vector<Point> points;
    for (const int64_t tokens : arguments.tokens) {
      train::SequenceWork work = arguments.work;
      work.tokens_a_frame = tokens;
      points.push_back({tokens, train::benchmark_sequence(work, arguments.schemes, group, device)});
      if (prints) {
        print(points.back());
      }
    }
    if (group.rank() == 0 && arguments.json) {
      std::cout << to_json(arguments, device::describe(device), group.size(), points).dump()
                << '\n';
    }
  });
  return 0;
}

}  // namespace kinora::apps
