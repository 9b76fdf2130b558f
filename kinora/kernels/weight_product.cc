#include "kinora/kernels/weight_product.h"

#include <algorithm>
#include <cstring>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/kernels/simd.h"

namespace kinora::kernels {
namespace {

// Eight numbers side by side, written as vectors, since only so compilers keep sums in registers.
constexpr int64_t kEight = 8;
using Floats [[gnu::vector_size(kEight * sizeof(float))]] = float;
using Words [[gnu::vector_size(kEight * sizeof(uint32_t))]] = uint32_t;
using Integers [[gnu::vector_size(kEight * sizeof(int32_t))]] = int32_t;

// A row is read in blocks of elements that are four vectors of floats, whose sums stay apart to the
// end: the same for every instruction set. Elements that share a word lie in different vectors, so
// that none changes its lane.
constexpr int64_t kSums = 4;
constexpr int64_t kBlock = kSums * kEight;
// Vectors of `in` for which a row is read once.
constexpr int64_t kMostVectors = 2;

// Bytes of a row that are asked for before they are read: of themselves processors read ahead to
// the end of a page. 16 cores of a Xeon read 77 GB/s so, and 63 without.
constexpr int64_t kAhead = 4096;

using Block = Floats[kSums];

/// A vector of `in` with zeros behind it to whole blocks.
constexpr int64_t padded(int64_t width) {
  return round_up(width, kBlock);
}

[[gnu::always_inline]] inline void load(const void* from, Floats& numbers) {
  std::memcpy(&numbers, from, sizeof(numbers));
}

[[gnu::always_inline]] inline void load(const void* from, Words& words) {
  std::memcpy(&words, from, sizeof(words));
}

/// The floats of these bits.
[[gnu::always_inline]] inline void set(Floats& numbers, const Words& bits) {
  std::memcpy(&numbers, &bits, sizeof(bits));
}

constexpr uint32_t kSign = 0x80000000U;

/// How a block is read. Small floats are not raised to their exponents: in the places of fp32's
/// bits they are too small by 2^(127 - bias), subnormal numbers, too, and so are sums. Vectors of
/// `in` are larger by the root of that, and what is left is put right in the end: all powers of
/// two.
struct FloatRow {
  using Element = float;
  static constexpr float kRaise = 1.0F;
  [[gnu::always_inline]] static void read(const float* row, Block& out) {
    for (int64_t k = 0; k < kSums; ++k) {
      load(row + k * kEight, out[k]);
    }
  }
};

struct Bf16Row {
  using Element = uint16_t;
  static constexpr float kRaise = 1.0F;
  [[gnu::always_inline]] static void read(const uint16_t* row, Block& out) {
    for (int64_t k = 0; k < kSums; k += 2) {
      Words two;
      load(row + k * kEight, two);
      set(out[k], two << 16);
      set(out[k + 1], two & 0xffff0000U);
    }
  }
};

struct Fp16Row {
  using Element = uint16_t;
  static constexpr float kRaise = 0x1p56F;  // squared: 127 - 15
  [[gnu::always_inline]] static void read(const uint16_t* row, Block& out) {
    for (int64_t k = 0; k < kSums; k += 2) {
      Words two;
      load(row + k * kEight, two);
      set(out[k], (two << 16 & kSign) | (two & 0x7fffU) << 13);
      set(out[k + 1], (two & kSign) | (two & 0x7fff0000U) >> 3);
    }
  }
};

struct Int8Row {
  using Element = uint8_t;
  static constexpr float kRaise = 1.0F;
  [[gnu::always_inline]] static void read(const uint8_t* row, Block& out) {
    Words four;
    load(row, four);
    for (int k = 0; k < kSums; ++k) {
      Integers codes;
      const Words highest = four << (24 - 8 * k);
      std::memcpy(&codes, &highest, sizeof(codes));
      out[k] = __builtin_convertvector(codes >> 24, Floats);
    }
  }
};

struct Fp8Row {
  using Element = uint8_t;
  static constexpr float kRaise = 0x1p60F;  // squared: 127 - 7
  [[gnu::always_inline]] static void read(const uint8_t* row, Block& out) {
    Words four;
    load(row, four);
    set(out[0], (four << 24 & kSign) | (four & 0x7fU) << 20);
    set(out[1], (four << 16 & kSign) | (four & 0x7f00U) << 12);
    set(out[2], (four << 8 & kSign) | (four & 0x7f0000U) << 4);
    set(out[3], (four & kSign) | (four & 0x7f000000U) >> 4);
  }
};

template <typename Row, int64_t kVectors>
struct ProductBody {
  using Element = typename Row::Element;

  /// Rows [first, end) of the weight. scales: of its rows; null: none. in: in Row's order, vectors
  /// of whole blocks.
  [[gnu::always_inline]] static void run(const Element* weight, const float* scales, int64_t width,
                                         const float* in, int64_t first, int64_t end, float* out,
                                         int64_t rows) {
    const int64_t whole = width / kBlock * kBlock;
    const int64_t stride = padded(width);
    for (int64_t r = first; r < end; ++r) {
      const Element* row = weight + r * width;
      Block sums[kVectors] = {};
      for (int64_t i = 0; i < whole; i += kBlock) {
        __builtin_prefetch(reinterpret_cast<const char*>(row + i) + kAhead);
        add(row + i, in + i, stride, sums);
      }
      if (whole < width) {
        Element rest[kBlock] = {};
        std::copy(row + whole, row + width, rest);
        add(rest, in + whole, stride, sums);
      }
      const float scale = scales == nullptr ? 1.0F : scales[r];
      for (int64_t v = 0; v < kVectors; ++v) {
        const Floats sum = (sums[v][0] + sums[v][1]) + (sums[v][2] + sums[v][3]);
        const float all =
            ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
        out[v * rows + r] = all * Row::kRaise * scale;
      }
    }
  }

 private:
  /// Vectors of `in` lie `stride` apart.
  [[gnu::always_inline]] static void add(const Element* row, const float* in, int64_t stride,
                                         Block (&sums)[kVectors]) {
    Block numbers;
    Row::read(row, numbers);
    for (int64_t v = 0; v < kVectors; ++v) {
      for (int64_t k = 0; k < kSums; ++k) {
        Floats factors;
        load(in + v * stride + k * kEight, factors);
        sums[v][k] += numbers[k] * factors;
      }
    }
  }
};

/// Vectors in the order in which Row reads elements, raised, and with zeros behind them to whole
/// blocks.
template <typename Row>
std::vector<float> in_order_of_row(const WeightProduct& call, const float* in) {
  constexpr int64_t kInWord = sizeof(uint32_t) / sizeof(typename Row::Element);
  constexpr int64_t kTogether = kInWord * kEight;
  const int64_t stride = padded(call.width);
  std::vector<float> ordered(static_cast<size_t>(call.num_vectors * stride));
  for (int64_t v = 0; v < call.num_vectors; ++v) {
    for (int64_t i = 0; i < call.width; ++i) {
      const int64_t own = i % kTogether;
      const int64_t place = i - own + own % kInWord * kEight + own / kInWord;
      ordered[static_cast<size_t>(v * stride + place)] = in[v * call.width + i] * Row::kRaise;
    }
  }
  return ordered;
}

template <typename Row, int64_t kVectors>
void multiply(const WeightProduct& call, const void* weight, const float* scales,
              const std::vector<float>& in, int64_t vector, int64_t first, int64_t end) {
  run_simd<ProductBody<Row, kVectors>>(static_cast<const typename Row::Element*>(weight), scales,
                                       call.width, in.data() + vector * padded(call.width), first,
                                       end, call.out + vector * call.rows, call.rows);
}

template <typename Row>
void multiply_all(const WeightProduct& call, const void* weight, const float* scales,
                  const std::vector<float>& in, int64_t first, int64_t end) {
  int64_t vector = 0;
  for (; vector + kMostVectors <= call.num_vectors; vector += kMostVectors) {
    multiply<Row, kMostVectors>(call, weight, scales, in, vector, first, end);
  }
  for (; vector < call.num_vectors; ++vector) {
    multiply<Row, 1>(call, weight, scales, in, vector, first, end);
  }
}

/// body(Row) with that which reads the weight.
template <typename Body>
auto with_row(const WeightProduct& call, const Body& body) {
  if (call.weight == nullptr) {
    const WeightCodes& codes = call.codes;
    KINORA_CHECK(has_product(codes.format) && codes.group == call.width, kInternal,
                 "[kernels] codes of ", name_of(codes.format), " have no product");
    return codes.format == WeightFormat::kInt8 ? body(Int8Row{}) : body(Fp8Row{});
  }
  switch (call.type) {
    case DType::kF32:
      return body(FloatRow{});
    case DType::kBF16:
      return body(Bf16Row{});
    case DType::kF16:
      return body(Fp16Row{});
    default:
      KINORA_UNREACHABLE("[kernels] a weight of ", to_string(call.type), " has no product");
  }
}

}  // namespace

std::vector<float> in_order_of_weight(const WeightProduct& call, const float* in) {
  return with_row(call, [&]<typename Row>(Row /*row*/) { return in_order_of_row<Row>(call, in); });
}

void multiply_weight(const WeightProduct& call, const std::vector<float>& ordered, int64_t first,
                     int64_t end) {
  const bool is_plain = call.weight != nullptr;
  const void* weight = is_plain ? call.weight : call.codes.codes;
  const float* scales = is_plain ? nullptr : call.codes.scales;
  with_row(call, [&]<typename Row>(Row /*row*/) {
    multiply_all<Row>(call, weight, scales, ordered, first, end);
  });
}

}  // namespace kinora::kernels
