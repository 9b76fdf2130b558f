// The index of a million samples: how long it takes to make, to look at again, and to look up.
// The samples lie in ten archives of WebDataset form, a hundred thousand pictures with captions in
// each; they are one file of 205 MB under ten names.

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kinora/core/rounding.h"
#include "kinora/data/index.h"
#include "kinora/data/media_set.h"
#include "kinora/data/media_source.h"
#include "kinora/io/file.h"
#include "kinora/io/image.h"

namespace kinora::data {
namespace {

namespace fs = std::filesystem;

constexpr int kNumArchives = 10;
constexpr int kNumPerArchive = 100'000;

void append_entry(io::FileWriter& out, const std::string& name,
                  std::span<const std::byte> content) {
  constexpr size_t kBlock = 512;
  std::vector<std::byte> entry(kBlock + round_up(content.size(), kBlock));
  auto* header = reinterpret_cast<char*>(entry.data());
  std::snprintf(header, 100, "%s", name.c_str());
  std::snprintf(header + 124, 12, "%011zo", content.size());
  header[156] = '0';
  std::memset(header + 148, ' ', 8);
  unsigned sum = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    sum += static_cast<unsigned char>(header[i]);
  }
  std::snprintf(header + 148, 8, "%06o", sum);
  std::memcpy(entry.data() + kBlock, content.data(), content.size());
  out.append(entry);
}

// A folder with the archives, which is removed at the end.
class Archives {
 public:
  Archives() : folder_(fs::temp_directory_path() / ("kinora-index-" + std::to_string(::getpid()))) {
    fs::create_directory(folder_);
    io::Image image;
    io::set_size(image, 8, 8);
    const std::vector<std::byte> png = io::encode_png(image);
    io::FileWriter out(folder_ / "all");
    for (int i = 0; i < kNumPerArchive; ++i) {
      const std::string key = "samples/" + std::to_string(1'000'000 + i);
      const std::string caption = "a picture with the number " + std::to_string(i);
      append_entry(out, key + ".png", png);
      append_entry(out, key + ".txt", std::as_bytes(std::span(caption)));
    }
    out.append(std::vector<std::byte>(1024));
    out.close();
    for (int i = 0; i < kNumArchives; ++i) {
      paths_.push_back(folder_ / (std::to_string(i) + ".tar"));
      fs::create_symlink("all", paths_.back());
    }
  }
  Archives(const Archives&) = delete;
  Archives& operator=(const Archives&) = delete;
  ~Archives() { fs::remove_all(folder_); }

  [[nodiscard]] const std::vector<fs::path>& paths() const { return paths_; }
  [[nodiscard]] fs::path index() const { return folder_ / "a.index"; }

 private:
  fs::path folder_;
  std::vector<fs::path> paths_;
};

const Archives& archives() {
  static const Archives kArchives;
  return kArchives;
}

// From the archives' names to the index on the disk.
void BM_IndexMake(benchmark::State& state) {
  (void)archives();
  for (auto _ : state) {
    fs::remove(archives().index());
    const MediaSource source(list_webdataset(archives().paths()));
    (void)update_index(source, archives().index(), {.num_threads = state.range(0)});
  }
  state.SetItemsProcessed(state.iterations() * kNumArchives * kNumPerArchive);
}
BENCHMARK(BM_IndexMake)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->Iterations(1)
    ->UseRealTime()
    ->Unit(benchmark::kSecond);

// The same where nothing has changed.
void BM_IndexAgain(benchmark::State& state) {
  const MediaSource source(list_webdataset(archives().paths()));
  (void)update_index(source, archives().index(), {});
  for (auto _ : state) {
    (void)update_index(source, archives().index(), {.num_threads = 2});
  }
  state.SetItemsProcessed(state.iterations() * source.size());
}
BENCHMARK(BM_IndexAgain)->Iterations(1)->UseRealTime()->Unit(benchmark::kSecond);

void BM_IndexOpen(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(Index::open(archives().index()).size());
  }
}
BENCHMARK(BM_IndexOpen)->Unit(benchmark::kMillisecond);

// By name, in an order that has nothing to do with that of the file.
void BM_IndexLookUp(benchmark::State& state) {
  const Index index = Index::open(archives().index());
  constexpr int64_t kStride = 7919;  // a prime
  std::vector<std::string> names;
  for (int64_t i = 0; i < index.size(); ++i) {
    names.emplace_back(index.name(i * kStride % index.size()));
  }
  size_t next = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(index.find(names[next]));
    next = next + 1 == names.size() ? 0 : next + 1;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_IndexLookUp);

}  // namespace
}  // namespace kinora::data
