#include "kinora/ops/quantised_weight.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "kinora/device/host_bytes.h"
#include "kinora/io/safetensors.h"
#include "tests/error_of.h"
#include "tests/ops/tensors.h"
#include "tests/places.h"

namespace kinora::ops {
namespace quantised_weight_test {

using kernels::WeightFormat;

// tools/reference/make_weight_code_fixtures.py
TEST(QuantisedWeightTest, Nf4EqualsBitsandbytes) {
  const auto file = io::SafetensorsFile::open(source_path("tests/ops/data/nf4.safetensors"));
  const auto read = [&file](const std::string& name) {
    const io::SafetensorsTensor& tensor = *file.find(name);
    return device::tensor_from_bytes(tensor.dtype, tensor.shape, tensor.data);
  };
  const at::Tensor weight = read("weight");
  const QuantisedWeight nf4 =
      zero_weight(WeightFormat::kNf4, weight.size(0), weight.size(1), at::kCPU);
  quantise(weight, nf4);
  EXPECT_TRUE(at::equal(nf4.codes, read("codes")));
  EXPECT_TRUE(at::equal(nf4.scales, read("absmax")));
  for (const auto& [name, type] :
       {std::pair{"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}}) {
    const at::Tensor out = at::empty(weight.sizes(), type);
    dequantise(nf4, out);
    EXPECT_TRUE(at::equal(out, read(name))) << name;
  }
}

// Several threads take parts of rows of odd width.
TEST(QuantisedWeightTest, PartsEqualTheWhole) {
  const at::Tensor weight = normal({301, 1153}, 1);
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kFp8, WeightFormat::kNf4}) {
    const QuantisedWeight parts = zero_weight(format, 301, 1153, at::kCPU);
    quantise(weight, parts);
    QuantisedWeight whole = zero_weight(format, 301, 1153, at::kCPU);
    kernels::quantise_weight({.format = format,
                              .count = whole.count,
                              .group = whole.group,
                              .codes = whole.codes.data_ptr<uint8_t>(),
                              .scales = whole.scales.data_ptr<float>()},
                             weight.const_data_ptr<float>());
    EXPECT_TRUE(at::equal(parts.codes, whole.codes));
    EXPECT_TRUE(at::equal(parts.scales, whole.scales));
    const at::Tensor out = at::empty({301, 1153}, at::kFloat);
    dequantise(parts, out);
    EXPECT_LT(relative_error(out, weight), format == WeightFormat::kNf4 ? 0.12 : 0.04);
  }
}

TEST(QuantisedWeightTest, RefusesOtherSizes) {
  const QuantisedWeight weight = zero_weight(WeightFormat::kInt8, 2, 3, at::kCPU);
  const at::Tensor seven = at::empty({7});
  const auto quantised = [&] {
    quantise(seven, weight);
    return 0;
  };
  const auto dequantised = [&] {
    dequantise(weight, seven);
    return 0;
  };
  EXPECT_THAT(error_of(ErrorKind::kShape, quantised), testing::HasSubstr("6 elements, got 7"));
  EXPECT_THAT(error_of(ErrorKind::kShape, dequantised), testing::HasSubstr("6 elements"));
}

}  // namespace quantised_weight_test
}  // namespace kinora::ops
