#include "kinora/data/mapped_strings.h"

#include <utility>

#include "kinora/core/error.h"
#include "kinora/data/float_values.h"

namespace kinora::data {

MappedStrings::MappedStrings(const io::SafetensorsFile& file, const std::string& name) {
  const io::SafetensorsTensor* bytes = file.find(name + "s");
  const io::SafetensorsTensor* ends = file.find(name + "_ends");
  const std::string where = "[data] " + file.path().string() + ": ";
  KINORA_CHECK(bytes != nullptr && bytes->dtype == DType::kU8 && ends != nullptr &&
                   ends->dtype == DType::kI64 && ends->shape.size() == 1,
               kIo, where, name, "s must be U8 bytes, and ", name,
               "_ends I64 [K], where each ends in them");
  bytes_ = bytes->data;
  ends_ = ends->data;
  size_ = ends->shape.front();
  int64_t last = 0;
  for (int64_t i = 0; i < size_; ++i) {
    const auto end = value_at<int64_t>(ends_.data(), i);
    KINORA_CHECK(end >= last && std::cmp_less_equal(end, bytes_.size()), kIo, where, name,
                 "_ends must rise within the ", bytes_.size(), " bytes of ", name, "s, got ", end,
                 " behind ", last);
    last = end;
  }
}

std::string_view MappedStrings::at(int64_t index) const {
  const int64_t begin = index == 0 ? 0 : value_at<int64_t>(ends_.data(), index - 1);
  const int64_t end = value_at<int64_t>(ends_.data(), index);
  return {reinterpret_cast<const char*>(bytes_.data()) + begin, static_cast<size_t>(end - begin)};
}

}  // namespace kinora::data
