/// Images per second that the loader's threads read, decode, crop and lay out.
///
/// Real sets are looked for under the environment variable KINORA_DATA, by default ../shared/data.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <benchmark/benchmark.h>

#include "kinora/data/class_tar.h"
#include "kinora/data/loader.h"
#include "kinora/data/shapes.h"

namespace {

using kinora::data::ClassTar;
using kinora::data::Loader;
using kinora::data::LoaderOptions;
using kinora::data::Source;

void load(benchmark::State& state, const Source& source, int64_t side, int64_t batch) {
  LoaderOptions options;
  options.height = side;
  options.width = side;
  options.micro_batch = batch;
  options.global_batch = batch;
  options.random_flip = true;
  options.num_threads = state.range(0);
  Loader loader(source, options);
  for (int64_t i = 0; i < options.queue_depth + 1; ++i) {  // what was decoded ahead does not count
    benchmark::DoNotOptimize(loader.next());
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(loader.next());
  }
  state.SetItemsProcessed(state.iterations() * batch);
}

void load_tar(benchmark::State& state, const char* name, int64_t side, int64_t batch) {
  const char* folder = std::getenv("KINORA_DATA");
  const std::filesystem::path path =
      std::filesystem::path(folder != nullptr ? folder : "../shared/data") / name;
  if (!std::filesystem::exists(path)) {
    state.SkipWithError((path.string() + " is absent; set KINORA_DATA").c_str());
    return;
  }
  load(state, ClassTar({path}), side, batch);
}

void BM_LoadShapes(benchmark::State& state) {
  const kinora::data::ShapeSource source(0, 65536, 32, 32);
  load(state, source, 32, 256);
}

// 32 x 32 JPEGs of 0.9 KB, as they are.
void BM_LoadCifar10(benchmark::State& state) {
  load_tar(state, "cifar10/train.tar", 32, 256);
}

// Photos of 400 to 936 pixels a side, cropped to 256 x 256 as ADM does.
void BM_LoadPhotos(benchmark::State& state) {
  load_tar(state, "clothing/train.tar", 256, 32);
}

BENCHMARK(BM_LoadShapes)->ArgName("threads")->Arg(1)->Arg(2)->Arg(4)->UseRealTime();
BENCHMARK(BM_LoadCifar10)->ArgName("threads")->Arg(1)->Arg(2)->Arg(4)->UseRealTime();
BENCHMARK(BM_LoadPhotos)->ArgName("threads")->Arg(1)->Arg(2)->Arg(4)->UseRealTime();

}  // namespace
