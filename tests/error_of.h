#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kinora/core/error.h"

namespace kinora {

/// The message of the Error that `call` throws, which must be of this kind; "no error" if none.
template <typename Call>
[[nodiscard]] std::string error_of(ErrorKind kind, const Call& call) {
  try {
    static_cast<void>(call());
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "no error";
}

}  // namespace kinora
