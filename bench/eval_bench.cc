// Statistics of features, and the distances of two sets, at the size of the Inception's.

#include <ATen/ops/rand.h>
#include <benchmark/benchmark.h>

#include <cstdint>

#include "kinora/eval/feature_statistics.h"
#include "kinora/eval/manifold.h"

namespace kinora::eval {
namespace {

constexpr int64_t kFeatures = 2048;

void BM_FeatureStatistics(benchmark::State& state) {
  const at::Tensor features = at::rand({state.range(0), kFeatures});
  for (auto _ : state) {
    FeatureStatistics statistics(kFeatures);
    statistics.add(features);
    benchmark::DoNotOptimize(statistics.gaussian().covariance.data_ptr());
  }
}
BENCHMARK(BM_FeatureStatistics)->ArgName("N")->Arg(50'000)->Unit(benchmark::kSecond)->UseRealTime();

void BM_FrechetDistance(benchmark::State& state) {
  const auto gaussian = [] {
    FeatureStatistics statistics(kFeatures);
    statistics.add(at::rand({2 * kFeatures, kFeatures}));
    return statistics.gaussian();
  };
  const Gaussian a = gaussian();
  const Gaussian b = gaussian();
  for (auto _ : state) {
    benchmark::DoNotOptimize(frechet_distance(a, b));
  }
}
BENCHMARK(BM_FrechetDistance)->Unit(benchmark::kSecond)->UseRealTime();

void BM_ManifoldScores(benchmark::State& state) {
  const at::Tensor a = at::rand({state.range(0), kFeatures});
  const at::Tensor b = at::rand({state.range(0), kFeatures});
  for (auto _ : state) {
    benchmark::DoNotOptimize(manifold_scores(a, b).precision);
  }
}
BENCHMARK(BM_ManifoldScores)->ArgName("N")->Arg(10'000)->Unit(benchmark::kSecond)->UseRealTime();

}  // namespace
}  // namespace kinora::eval
