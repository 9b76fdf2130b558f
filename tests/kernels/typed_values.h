#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kinora/core/dtype.h"
#include "kinora/kernels/elements.h"
#include "kinora/kernels/fp8.h"
#include "kinora/kernels/random.h"
#include "tests/kernels/tolerance.h"

namespace kinora::kernels {

/// `count` normal numbers times `scale`; `sample` names them.
inline std::vector<float> random_values(int64_t count, uint64_t sample, float scale = 1.0F) {
  std::vector<float> values(static_cast<size_t>(count));
  if (count > 0) {
    random_fill(values.data(), count, {1, sample, 0, RandomPurpose::kTest}, 0,
                Distribution::kNormal, scale);
  }
  return values;
}

/// The bytes of an array of `type` with these values.
inline std::vector<uint8_t> encode(const std::vector<float>& values, DType type) {
  std::vector<uint8_t> bytes(values.size() * size_of(type));
  for (size_t i = 0; i < values.size(); ++i) {
    if (is_fp8(type)) {
      bytes[i] = float_to_fp8(values[i], type);
    } else {
      store_element(bytes.data(), static_cast<int64_t>(i), type, values[i]);
    }
  }
  return bytes;
}

inline std::vector<float> decode(const std::vector<uint8_t>& bytes, DType type) {
  std::vector<float> values(bytes.size() / size_of(type));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = is_fp8(type) ? fp8_to_float(bytes[i], type)
                             : load_element(bytes.data(), static_cast<int64_t>(i), type);
  }
  return values;
}

/// Every element within the tolerance of `type`, relative to at least `magnitude`; tells the first
/// that is not.
inline void expect_close(const std::vector<float>& got, const std::vector<float>& want, DType type,
                         double magnitude, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!is_close(got[i], want[i], type, magnitude)) {
      ADD_FAILURE() << what << ": element " << i << " of " << got.size() << " is " << got[i]
                    << ", must be " << want[i];
      return;
    }
  }
}

}  // namespace kinora::kernels
