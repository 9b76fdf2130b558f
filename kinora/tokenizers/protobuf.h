#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kinora::tokenizers {

/// A field of a message on the wire.
struct ProtobufField {
  uint64_t number = 0;
  int wire_type = 0;
  uint64_t value = 0;        ///< of integers and of fixed-size numbers
  std::string_view content;  ///< of texts and messages
  std::string_view where;

  /// Error (kIo), for these three: the field is of another kind.
  [[nodiscard]] uint64_t integer() const;
  [[nodiscard]] float single() const;
  [[nodiscard]] std::string_view bytes() const;
};

/// Reads the fields of one message of Protocol Buffers in order (their encoding: "wire format").
/// Nothing is copied, and inner messages are read only when asked for, so nothing can nest too
/// deep.
class ProtobufMessage {
 public:
  /// `where` begins errors, and must outlive the fields.
  ProtobufMessage(std::string_view bytes, std::string_view where) : rest_(bytes), where_(where) {}

  /// Nothing at the end. Error (kIo): the bytes are no message, or are cut off.
  [[nodiscard]] std::optional<ProtobufField> next();

 private:
  [[nodiscard]] uint64_t varint();
  [[nodiscard]] uint64_t fixed(size_t size);
  void check(bool holds) const;

  std::string_view rest_;
  std::string_view where_;
};

}  // namespace kinora::tokenizers
