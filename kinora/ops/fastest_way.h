#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "kinora/kernels/matmul.h"

namespace kinora::ops {

/// One of the ways to compute a part of a block.
struct Way {
  const char* name;  ///< a literal
  bool is_possible;
};

/// Which way each part was fastest, found by timing.
class FastestWay {
 public:
  /// deterministic: nothing is timed, since ways round differently and the same bits are wanted
  /// each time.
  explicit FastestWay(bool deterministic) : deterministic_(deterministic) {}

  /// The index of the fastest possible one of the `ways` to compute the part that is known by
  /// `problem`, one of its products. `run` runs a way by its index and is called again and again.
  /// Timed at the first call outside of a graph's capture (waits for the device); a way that the
  /// library refuses to run counts as impossible. Where nothing is timed: the first possible one.
  /// Throws what the last one threw where the library refuses all.
  [[nodiscard]] size_t choose(const kernels::MatmulProblem& problem,
                              std::initializer_list<Way> ways,
                              const std::function<void(size_t)>& run);

  /// What the ways of that part took, "fused 0.9 ms, in steps 0.8 ms"; empty where nothing was
  /// timed.
  [[nodiscard]] std::string times(const kernels::MatmulProblem& problem) const;

  /// The same in numbers, by the ways' indices; infinite where a way is impossible.
  [[nodiscard]] std::vector<double> milliseconds(const kernels::MatmulProblem& problem) const;

  /// A line for every part that was timed: "ways of m=...: in steps (fused 0.9 ms, in steps 0.8
  /// ms)".
  [[nodiscard]] std::vector<std::string> report() const;

 private:
  struct Part {
    kernels::MatmulProblem problem;
    size_t fastest = 0;
    std::string fastest_name;
    std::string times;  ///< of all ways
    std::vector<double> milliseconds;
  };

  /// Null: not timed.
  [[nodiscard]] const Part* find(const kernels::MatmulProblem& problem) const;

  bool deterministic_;
  std::vector<Part> parts_;
};

}  // namespace kinora::ops
