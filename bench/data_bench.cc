/// Images per second that the loader's threads read, decode, crop and lay out; and how long a
/// training loop that wants a batch every 20 ms waits for it ("stall").
///
/// Real sets are looked for under the environment variable KINORA_DATA, by default ../shared/data.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

#include "kinora/data/class_tar.h"
#include "kinora/data/loader.h"
#include "kinora/data/shapes.h"

namespace {

using kinora::data::ClassTar;
using kinora::data::Loader;
using kinora::data::LoaderOptions;
using kinora::data::Source;

LoaderOptions options_for(int64_t threads, int64_t side, int64_t batch) {
  LoaderOptions options;
  options.height = side;
  options.width = side;
  options.micro_batch = batch;
  options.global_batch = batch;
  options.random_flip = true;
  options.num_threads = threads;
  return options;
}

// What was decoded ahead does not count.
void warm_up(Loader& loader) {
  for (int64_t i = 0; i < LoaderOptions().queue_depth + 1; ++i) {
    benchmark::DoNotOptimize(loader.next());
  }
}

void load(benchmark::State& state, const Source& source, int64_t side, int64_t batch) {
  Loader loader(source, options_for(state.range(0), side, batch));
  warm_up(loader);
  for (auto _ : state) {
    benchmark::DoNotOptimize(loader.next());
  }
  state.SetItemsProcessed(state.iterations() * batch);
}

// Each iteration is a step of 20 ms in which the host has nothing to do, as while a GPU works.
void stall(benchmark::State& state, const Source& source, int64_t side) {
  using Clock = std::chrono::steady_clock;
  const int64_t batch = state.range(1);
  Loader loader(source, options_for(state.range(0), side, batch));
  warm_up(loader);
  std::vector<double> stalls;  // ms
  for (auto _ : state) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const Clock::time_point start = Clock::now();
    benchmark::DoNotOptimize(loader.next());
    stalls.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  std::sort(stalls.begin(), stalls.end());
  const auto percentile = [&](size_t p) { return stalls[(stalls.size() - 1) * p / 100]; };
  state.counters["stall_p50_ms"] = percentile(50);
  state.counters["stall_p99_ms"] = percentile(99);
  state.counters["stall_max_ms"] = percentile(100);
  state.SetItemsProcessed(state.iterations() * batch);
}

// function(source) of a set of KINORA_DATA.
template <typename Function>
void with_tar(benchmark::State& state, const char* name, const Function& function) {
  const char* folder = std::getenv("KINORA_DATA");
  const std::filesystem::path path =
      std::filesystem::path(folder != nullptr ? folder : "../shared/data") / name;
  if (!std::filesystem::exists(path)) {
    state.SkipWithError((path.string() + " is absent; set KINORA_DATA").c_str());
    return;
  }
  function(ClassTar({path}));
}

void BM_LoadShapes(benchmark::State& state) {
  const kinora::data::ShapeSource source(0, 65536, 32, 32);
  load(state, source, 32, 256);
}

// 32 x 32 JPEGs of 0.9 KB, as they are.
void BM_LoadCifar10(benchmark::State& state) {
  with_tar(state, "cifar10/train.tar", [&](const Source& source) { load(state, source, 32, 256); });
}

// Photos of 400 to 936 pixels a side, cropped to 256 x 256 as ADM does.
void BM_LoadPhotos(benchmark::State& state) {
  with_tar(state, "clothing/train.tar",
           [&](const Source& source) { load(state, source, 256, 32); });
}

void BM_StallPhotos(benchmark::State& state) {
  with_tar(state, "clothing/train.tar", [&](const Source& source) { stall(state, source, 256); });
}

BENCHMARK(BM_LoadShapes)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->Arg(4)
    ->MeasureProcessCPUTime()
    ->UseRealTime();
BENCHMARK(BM_LoadCifar10)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->Arg(4)
    ->MeasureProcessCPUTime()
    ->UseRealTime();
BENCHMARK(BM_LoadPhotos)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->Arg(4)
    ->MeasureProcessCPUTime()
    ->UseRealTime();

// A sixth of what the threads can decode; see docs/performance.md.
BENCHMARK(BM_StallPhotos)
    ->ArgNames({"threads", "batch"})
    ->Args({1, 2})
    ->Args({2, 4})
    ->Iterations(1000)
    ->MeasureProcessCPUTime()
    ->UseRealTime();

}  // namespace
