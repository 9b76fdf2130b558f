#include "kinora/device/host_bytes.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"

namespace kinora::device {
namespace host_bytes_test {

constexpr DType kAll[] = {DType::kBool, DType::kU8,   DType::kI8,     DType::kI16,
                          DType::kI32,  DType::kI64,  DType::kF8E4M3, DType::kF8E5M2,
                          DType::kF16,  DType::kBF16, DType::kF32,    DType::kF64};

template <typename Call>
void expect_refusal(ErrorKind kind, const Call& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
  }
}

TEST(HostBytesTest, TypesMapBothWays) {
  for (const DType dtype : kAll) {
    EXPECT_EQ(dtype_of(scalar_type(dtype)), dtype);
    EXPECT_EQ(static_cast<int64_t>(c10::elementSize(scalar_type(dtype))), size_of(dtype));
  }
  expect_refusal(ErrorKind::kShape, [] { (void)dtype_of(at::kComplexFloat); });
}

TEST(HostBytesTest, TensorsComeBackFromTheirBytesAtAnyAlignment) {
  for (const DType dtype : kAll) {
    const at::Tensor tensor = at::arange(12, at::kLong).to(scalar_type(dtype)).view({3, 4});
    const std::span<const std::byte> bytes = bytes_of(tensor);
    ASSERT_EQ(bytes.size(), tensor.nbytes());
    std::vector<std::byte> shifted(bytes.size() + 1);
    std::copy(bytes.begin(), bytes.end(), shifted.begin() + 1);
    const at::Tensor back = tensor_from_bytes(dtype, {3, 4}, std::span(shifted).subspan(1));
    EXPECT_EQ(back.scalar_type(), tensor.scalar_type());
    EXPECT_TRUE(at::equal(back, tensor));
    EXPECT_NE(back.const_data_ptr(), tensor.const_data_ptr());
  }
}

TEST(HostBytesTest, EmptyTensorsHaveNoBytes) {
  EXPECT_TRUE(bytes_of(at::zeros({0, 3})).empty());
  EXPECT_EQ(tensor_from_bytes(DType::kF32, {0, 3}, {}).sizes(), (at::IntArrayRef{0, 3}));
}

TEST(HostBytesTest, WrongSizesAndLayoutsAreRefused) {
  const std::vector<std::byte> bytes(12);
  expect_refusal(ErrorKind::kInternal, [&] { (void)tensor_from_bytes(DType::kF32, {4}, bytes); });
  expect_refusal(ErrorKind::kInternal, [&] { (void)tensor_from_bytes(DType::kF32, {2}, bytes); });
  expect_refusal(ErrorKind::kInternal, [] { (void)bytes_of(at::zeros({3, 4}).t()); });
}

}  // namespace host_bytes_test
}  // namespace kinora::device
