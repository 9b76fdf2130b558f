#include "kinora/tokenizers/protobuf.h"

#include <bit>

#include "kinora/core/error.h"

namespace kinora::tokenizers {
namespace {

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

}  // namespace

uint64_t ProtobufField::integer() const {
  KINORA_CHECK(wire_type == kVarint, kIo, where, " field ", number,
               " must be an integer, got wire type ", wire_type);
  return value;
}

float ProtobufField::single() const {
  KINORA_CHECK(wire_type == kFixed32, kIo, where, " field ", number,
               " must be a float, got wire type ", wire_type);
  return std::bit_cast<float>(static_cast<uint32_t>(value));
}

std::string_view ProtobufField::bytes() const {
  KINORA_CHECK(wire_type == kBytes, kIo, where, " field ", number, " must be bytes, got wire type ",
               wire_type);
  return content;
}

void ProtobufMessage::check(bool holds) const {
  KINORA_CHECK(holds, kIo, where_, " must be a message of Protocol Buffers, got other bytes, ",
               rest_.size(), " before its end");
}

uint64_t ProtobufMessage::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    check(!rest_.empty());
    const auto byte = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    if (shift < 64) {
      value |= uint64_t{byte & 0x7FU} << shift;
    }
    if (byte < 0x80) {
      return value;
    }
  }
  check(false);
  return 0;
}

uint64_t ProtobufMessage::fixed(size_t size) {
  check(rest_.size() >= size);
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) {
    value |= uint64_t{static_cast<unsigned char>(rest_[i])} << (8 * i);
  }
  rest_.remove_prefix(size);
  return value;
}

std::optional<ProtobufField> ProtobufMessage::next() {
  if (rest_.empty()) {
    return std::nullopt;
  }
  ProtobufField field;
  field.where = where_;
  const uint64_t tag = varint();
  field.number = tag >> 3;
  field.wire_type = static_cast<int>(tag & 7);
  check(field.number > 0);
  switch (field.wire_type) {
    case kVarint:
      field.value = varint();
      break;
    case kFixed64:
      field.value = fixed(8);
      break;
    case kFixed32:
      field.value = fixed(4);
      break;
    case kBytes: {
      const uint64_t size = varint();
      check(size <= rest_.size());
      field.content = rest_.substr(0, size);
      rest_.remove_prefix(size);
      break;
    }
    default:  // groups, which nothing has any more
      check(false);
  }
  return field;
}

}  // namespace kinora::tokenizers
