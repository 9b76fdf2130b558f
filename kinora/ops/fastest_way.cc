#include "kinora/ops/fastest_way.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <sstream>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/kernels/matmul_cache.h"
#include "kinora/ops/block_launch.h"

namespace kinora::ops {

size_t FastestWay::choose(const kernels::MatmulProblem& problem, std::initializer_list<Way> ways,
                          const std::function<void(size_t)>& run) {
  if (const Part* timed = find(problem)) {
    return timed->fastest;
  }
  const auto is_possible = [](const Way& way) { return way.is_possible; };
  const auto num_possible = std::count_if(ways.begin(), ways.end(), is_possible);
  KINORA_CHECK(num_possible > 0, kInternal, "[kernels] a part must have a way, got none of ",
               ways.size());
  if (num_possible == 1 || deterministic_ || cuda::is_capturing()) {
    return static_cast<size_t>(std::find_if(ways.begin(), ways.end(), is_possible) - ways.begin());
  }
  Part part;
  part.problem = problem;
  part.milliseconds.assign(ways.size(), std::numeric_limits<double>::infinity());
  std::ostringstream times;
  times.precision(4);
  double best = std::numeric_limits<double>::infinity();
  std::exception_ptr refusal;
  for (size_t i = 0; i < ways.size(); ++i) {
    const Way& way = ways.begin()[i];
    if (!way.is_possible) {
      continue;
    }
    try {
      run(i);  // chooses the algorithms
    } catch (const Error& error) {
      // The library proposes some products that it then refuses to run.
      if (error.kind() != ErrorKind::kInternal) {
        throw;
      }
      refusal = std::current_exception();
      continue;
    }
    const double milliseconds = cuda::milliseconds([&] { run(i); });
    part.milliseconds[i] = milliseconds;
    times << (part.fastest_name.empty() ? "" : ", ") << way.name << ' ' << milliseconds << " ms";
    if (milliseconds < best) {
      best = milliseconds;
      part.fastest = i;
      part.fastest_name = way.name;
    }
  }
  if (part.fastest_name.empty()) {
    std::rethrow_exception(refusal);
  }
  part.times = times.str();
  parts_.push_back(std::move(part));
  return parts_.back().fastest;
}

std::string FastestWay::times(const kernels::MatmulProblem& problem) const {
  const Part* timed = find(problem);
  return timed != nullptr ? timed->times : std::string();
}

std::vector<double> FastestWay::milliseconds(const kernels::MatmulProblem& problem) const {
  const Part* timed = find(problem);
  return timed != nullptr ? timed->milliseconds : std::vector<double>();
}

const FastestWay::Part* FastestWay::find(const kernels::MatmulProblem& problem) const {
  for (const Part& part : parts_) {
    if (part.problem == problem) {
      return &part;
    }
  }
  return nullptr;
}

std::vector<std::string> FastestWay::report() const {
  std::vector<std::string> lines;
  for (const Part& part : parts_) {
    lines.push_back("ways of " + kernels::describe(kernels::normalised(part.problem), {}) + ": " +
                    part.fastest_name + " (" + part.times + ')');
  }
  return lines;
}

}  // namespace kinora::ops
