#include "kinora/kernels/random.h"

#include <algorithm>
#include <cassert>

#include "kinora/kernels/simd.h"

namespace kinora::kernels {
namespace {

constexpr int64_t kBatch =
    64;  // blocks whose words lie side by side, so that loops become vector code

struct WholeBlocksBody {
  /// The 4 * count elements of blocks first_block, first_block + 1, ...
  [[gnu::always_inline]] static void run(float* __restrict__ out, int64_t count,
                                         const RandomStream& stream, uint64_t first_block,
                                         Distribution distribution, float scale) {
    for (int64_t start = 0; start < count; start += kBatch) {
      const int64_t batch = std::min(kBatch, count - start);
      batch_of(out + 4 * start, batch, stream, static_cast<uint32_t>(first_block + start),
               distribution, scale);
    }
  }

 private:
  [[gnu::always_inline]] static void batch_of(float* __restrict__ out, int64_t count,
                                              const RandomStream& stream, uint32_t first_block,
                                              Distribution distribution, float scale) {
    uint32_t words[4][kBatch];
    for (int64_t i = 0; i < kBatch; ++i) {
      const PhiloxBlock block = philox(stream, first_block + static_cast<uint32_t>(i));
      words[0][i] = block.word[0];
      words[1][i] = block.word[1];
      words[2][i] = block.word[2];
      words[3][i] = block.word[3];
    }
    float values[4][kBatch];
    if (distribution == Distribution::kNormal) {
      for (int64_t i = 0; i < kBatch; ++i) {
        float normals[4];
        philox_normal({{words[0][i], words[1][i], words[2][i], words[3][i]}}, normals);
        values[0][i] = normals[0];
        values[1][i] = normals[1];
        values[2][i] = normals[2];
        values[3][i] = normals[3];
      }
    } else {
      const float shift = distribution == Distribution::kSymmetricUniform ? -1.0F : 0.0F;
      const float stretch = distribution == Distribution::kSymmetricUniform ? 2.0F : 1.0F;
      for (int64_t lane = 0; lane < 4; ++lane) {
        for (int64_t i = 0; i < kBatch; ++i) {
          values[lane][i] = philox_uniform(words[lane][i]) * stretch + shift;
        }
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t lane = 0; lane < 4; ++lane) {
        out[4 * i + lane] = values[lane][i] * scale;
      }
    }
  }
};

}  // namespace

void random_fill(float* out, int64_t count, const RandomStream& stream, uint64_t first_element,
                 Distribution distribution, float scale) {
  assert(first_element + static_cast<uint64_t>(count) <= kMaxStreamElements);
  uint64_t block = first_element / 4;
  int64_t done = 0;
  const auto part_of_block = [&](int64_t skip, int64_t take) {
    float values[4];
    random_block(stream, static_cast<uint32_t>(block), distribution, scale, values);
    std::copy_n(values + skip, take, out + done);
    done += take;
    ++block;
  };
  const auto skip = static_cast<int64_t>(first_element % 4);
  if (skip != 0) {
    part_of_block(skip, std::min(4 - skip, count));
  }
  const int64_t whole = (count - done) / 4;
  run_simd<WholeBlocksBody>(out + done, whole, stream, block, distribution, scale);
  block += static_cast<uint64_t>(whole);
  done += 4 * whole;
  if (done < count) {
    part_of_block(0, count - done);
  }
}

}  // namespace kinora::kernels
