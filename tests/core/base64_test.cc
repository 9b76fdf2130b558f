#include "kinora/core/base64.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace kinora {
namespace base64_test {

std::string encoded(std::string_view text) {
  return encode_base64(std::as_bytes(std::span(text)));
}

TEST(Base64Test, IsThatOfTheStandard) {
  const std::vector<std::pair<std::string, std::string>> kOfRfc4648 = {{"", ""},
                                                                       {"f", "Zg=="},
                                                                       {"fo", "Zm8="},
                                                                       {"foo", "Zm9v"},
                                                                       {"foob", "Zm9vYg=="},
                                                                       {"fooba", "Zm9vYmE="},
                                                                       {"foobar", "Zm9vYmFy"}};
  for (const auto& [text, base64] : kOfRfc4648) {
    EXPECT_EQ(encoded(text), base64);
    EXPECT_EQ(decode_base64(base64), text);
    EXPECT_EQ(decode_base64(base64.substr(0, base64.find('='))), text);
  }
  std::string all;
  for (int i = 0; i < 256; ++i) {
    all += static_cast<char>(i);
  }
  EXPECT_EQ(decode_base64(encoded(all)), all);
}

TEST(Base64Test, OtherTextIsNone) {
  for (const char* text : {"Zg==Zg==", "Zm9v YmFy", "Zm9v\n", "Z", "Zm9vY", "_w", "=Zg"}) {
    EXPECT_EQ(decode_base64(text), std::nullopt) << text;
  }
}

}  // namespace base64_test
}  // namespace kinora
