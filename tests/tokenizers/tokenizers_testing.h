#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "kinora/io/file.h"
#include "kinora/tokenizers/tokenizer.h"
#include "tests/error_of.h"
#include "tests/io/io_testing.h"
#include "tests/places.h"

namespace kinora::tokenizers::test {

using io::test::TemporaryFolder;

inline const std::filesystem::path kData = source_path("tests/tokenizers/data");

/// The tokenizer of a tokenizer.json with this content.
inline Tokenizer from_json(std::string_view json) {
  const TemporaryFolder folder;
  io::write_file_atomic(folder / "tokenizer.json", json);
  return Tokenizer::load(folder.path());
}

/// A BPE model of the letters a to c, with the tokens ab and abc; more members may follow.
inline std::string abc_model(const std::string& more = "") {
  return R"({"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "?": 5},
             "merges": ["a b", ["ab", "c"]])" +
         more + "}";
}

/// A tokenizer.json of this model and these other members, as R"("normalizer": ...)".
inline std::string json_of(const std::string& model, const std::string& members = "") {
  return R"({"model": )" + model + (members.empty() ? "" : ", ") + members + "}";
}

}  // namespace kinora::tokenizers::test
