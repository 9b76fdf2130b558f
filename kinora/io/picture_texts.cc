#include "kinora/io/picture_texts.h"

#include <webp/mux.h>
#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/io/file.h"
#include "kinora/io/gif_comments.h"
#include "kinora/io/video.h"

namespace kinora::io {
namespace {

constexpr std::string_view kPngSignature("\x89PNG\r\n\x1a\n", 8);
constexpr size_t kChunkFrame = 12;  // of a PNG's chunk: length, name, checksum
constexpr size_t kPngHeader = 33;   // signature and the first chunk, IHDR
constexpr size_t kMostKeyBytes = 79;
constexpr std::string_view kPrefix = " kinora:";  // of attributes in the XMP packet

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void add_u32(std::string& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) {
    out += static_cast<char>((value >> shift) & 0xFFU);
  }
}

uint32_t u32(std::string_view bytes) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    value = (value << 8U) | static_cast<uint8_t>(bytes[static_cast<size_t>(i)]);
  }
  return value;
}

std::string png_chunk(std::string_view name, std::string_view data) {
  std::string chunk;
  add_u32(chunk, static_cast<uint32_t>(data.size()));
  std::string covered(name);
  covered += data;
  chunk += covered;
  add_u32(chunk, static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(covered.data()),
                                             static_cast<uInt>(covered.size()))));
  return chunk;
}

std::string png_text(const PictureText& text) {
  const bool is_ascii =
      std::ranges::all_of(text.value, [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); });
  if (is_ascii) {
    return png_chunk("tEXt", text.key + '\0' + text.value);
  }
  // Key, not compressed, no language, no translated key (PNG 11.3.4.5).
  return png_chunk("iTXt", text.key + std::string(5, '\0') + text.value);
}

/// Behind the `count`-th zero; nothing where there are fewer.
std::optional<size_t> behind_zeros(std::string_view data, int count) {
  size_t at = 0;
  for (; count > 0; --count) {
    const size_t zero = data.find('\0', at);
    if (zero == std::string_view::npos) {
      return std::nullopt;
    }
    at = zero + 1;
  }
  return at;
}

/// Nothing where the chunk holds no text that is not compressed.
std::optional<PictureText> png_text_of(std::string_view name, std::string_view data) {
  const std::optional<size_t> value = behind_zeros(data, 1);
  if (!value) {
    return std::nullopt;
  }
  const std::string key(data.substr(0, *value - 1));
  if (name == "tEXt") {
    return PictureText{.key = key, .value = std::string(data.substr(*value))};
  }
  const std::string_view rest = data.substr(*value);  // flag, method, language, key, text
  if (name != "iTXt" || rest.size() < 2 || rest[0] != '\0') {
    return std::nullopt;
  }
  const std::optional<size_t> text = behind_zeros(rest.substr(2), 2);
  return text ? std::optional(PictureText{.key = key, .value = std::string(rest.substr(2 + *text))})
              : std::nullopt;
}

void add(std::vector<PictureText>& texts, PictureText text, size_t& total,
         const std::string& name) {
  total += text.key.size() + text.value.size();
  KINORA_CHECK(total <= kMostTextBytes, kIo, "[texts] ", name, " must hold at most ",
               human_bytes(kMostTextBytes), " of texts");
  texts.push_back(std::move(text));
}

std::vector<PictureText> png_texts(std::string_view bytes, const std::string& name) {
  std::vector<PictureText> texts;
  size_t total = 0;
  size_t at = kPngSignature.size();
  while (at < bytes.size()) {
    KINORA_CHECK(bytes.size() - at >= kChunkFrame, kIo, "[texts] ", name, " ends within a chunk");
    const size_t length = u32(bytes.substr(at));
    KINORA_CHECK(length <= bytes.size() - at - kChunkFrame, kIo, "[texts] ", name,
                 " has a chunk of ", length, " bytes, more than the file has");
    const std::string_view chunk = bytes.substr(at + 4, 4);
    if (auto text = png_text_of(chunk, bytes.substr(at + 8, length))) {
      if (chunk == "tEXt" || chunk == "iTXt") {
        add(texts, std::move(*text), total, name);
      }
    }
    if (chunk == "IEND") {
      break;
    }
    at += kChunkFrame + length;
  }
  return texts;
}

struct MuxDeleter {
  void operator()(WebPMux* mux) const { WebPMuxDelete(mux); }
};
using Mux = std::unique_ptr<WebPMux, MuxDeleter>;

Mux open_webp(std::span<const std::byte> bytes, const std::string& name) {
  const WebPData data = {.bytes = reinterpret_cast<const uint8_t*>(bytes.data()),
                         .size = bytes.size()};
  Mux mux(WebPMuxCreate(&data, /*copy_data=*/0));
  KINORA_CHECK(mux != nullptr, kIo, "[texts] ", name, " must be a whole, valid WebP");
  return mux;
}

/// As an attribute's value.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\n':
        out += "&#10;";
        break;
      case '\r':
        out += "&#13;";
        break;
      case '\t':
        out += "&#9;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string unescaped(std::string_view text) {
  static constexpr std::pair<std::string_view, char> kEntities[] = {
      {"&amp;", '&'},  {"&lt;", '<'},   {"&quot;", '"'},
      {"&#10;", '\n'}, {"&#13;", '\r'}, {"&#9;", '\t'}};
  std::string out;
  while (!text.empty()) {
    const auto* const found = std::ranges::find_if(
        kEntities, [&](const auto& one) { return text.starts_with(one.first); });
    const bool is_entity = found != std::end(kEntities);
    out += is_entity ? found->second : text.front();
    text.remove_prefix(is_entity ? found->first.size() : 1);
  }
  return out;
}

std::string xmp_of(std::span<const PictureText> texts) {
  std::string packet =
      "<x:xmpmeta xmlns:x=\"adobe:ns:meta/\"><rdf:RDF "
      "xmlns:rdf=\"http://www.w3.org/1999/02/22-rdf-syntax-ns#\"><rdf:Description rdf:about=\"\" "
      "xmlns:kinora=\"urn:kinora\"";
  for (const PictureText& text : texts) {
    packet += std::string(kPrefix) + text.key + "=\"" + escaped(text.value) + '"';
  }
  return packet + "/></rdf:RDF></x:xmpmeta>";
}

std::vector<PictureText> xmp_texts(std::string_view packet, const std::string& name) {
  std::vector<PictureText> texts;
  size_t total = 0;
  for (size_t at = packet.find(kPrefix); at != std::string_view::npos;
       at = packet.find(kPrefix, at)) {
    at += kPrefix.size();
    const size_t equals = packet.find("=\"", at);
    const size_t begin = equals == std::string_view::npos ? equals : equals + 2;
    const size_t end = begin == std::string_view::npos ? begin : packet.find('"', begin);
    KINORA_CHECK(end != std::string_view::npos, kIo, "[texts] ", name,
                 " has a text that does not end");
    add(texts,
        {.key = std::string(packet.substr(at, equals - at)),
         .value = unescaped(packet.substr(begin, end - begin))},
        total, name);
    at = end;
  }
  return texts;
}

bool is_key(std::string_view key) {
  return !key.empty() && key.size() <= kMostKeyBytes && std::ranges::all_of(key, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

std::vector<PictureText> gif_texts(std::string_view bytes, const std::string& name) {
  std::vector<PictureText> texts;
  size_t total = 0;
  for (const std::string& comment : gif_comments(bytes, name)) {
    const size_t equals = comment.find('=');
    if (equals != std::string::npos && is_key(comment.substr(0, equals))) {
      add(texts, {.key = comment.substr(0, equals), .value = comment.substr(equals + 1)}, total,
          name);
    }
  }
  return texts;
}

}  // namespace

void check_texts(std::span<const PictureText> texts) {
  size_t total = 0;
  for (const PictureText& text : texts) {
    KINORA_CHECK(is_key(text.key), kShape, "[texts] a key must have 1 to ", kMostKeyBytes,
                 " letters and digits, got ", quote(text.key));
    total += text.value.size();
  }
  KINORA_CHECK(total <= kMostTextBytes, kShape, "[texts] texts of a picture must take at most ",
               human_bytes(kMostTextBytes), ", got ", human_bytes(static_cast<int64_t>(total)));
}

std::vector<std::byte> with_png_texts(std::span<const std::byte> png,
                                      std::span<const PictureText> texts) {
  check_texts(texts);
  const std::string_view bytes = text_of(png);
  KINORA_CHECK(bytes.starts_with(kPngSignature) && bytes.size() >= kPngHeader, kIo,
               "[texts] texts go into a PNG, got other bytes");
  std::string out(bytes.substr(0, kPngHeader));
  for (const PictureText& text : texts) {
    out += png_text(text);
  }
  out += bytes.substr(kPngHeader);
  return bytes_of(out);
}

std::vector<std::byte> with_webp_texts(std::span<const std::byte> webp,
                                       std::span<const PictureText> texts) {
  check_texts(texts);
  const Mux mux = open_webp(webp, "what texts go into");
  const std::string packet = xmp_of(texts);
  const WebPData xmp = {.bytes = reinterpret_cast<const uint8_t*>(packet.data()),
                        .size = packet.size()};
  WebPData out;
  WebPDataInit(&out);
  const bool is_done = WebPMuxSetChunk(mux.get(), "XMP ", &xmp, /*copy_data=*/1) == WEBP_MUX_OK &&
                       WebPMuxAssemble(mux.get(), &out) == WEBP_MUX_OK;
  const auto* bytes = reinterpret_cast<const std::byte*>(out.bytes);
  std::vector<std::byte> result(bytes, bytes + out.size);
  WebPDataClear(&out);
  KINORA_CHECK(is_done, kIo, "[texts] libwebp could not add texts");
  return result;
}

std::vector<std::byte> with_gif_texts(std::span<const std::byte> gif,
                                      std::span<const PictureText> texts) {
  check_texts(texts);
  KINORA_CHECK(is_gif(text_of(gif)), kIo, "[texts] texts go into a GIF, got other bytes");
  std::vector<std::string> comments;
  for (const PictureText& text : texts) {
    comments.push_back(text.key + "=" + text.value);
  }
  return bytes_of(with_gif_comments(text_of(gif), comments));
}

std::vector<PictureText> read_texts(std::span<const std::byte> bytes, const std::string& name) {
  const std::string_view text = text_of(bytes);
  if (text.starts_with(kPngSignature)) {
    return png_texts(text, name);
  }
  if (is_gif(text)) {
    return gif_texts(text, name);
  }
  KINORA_CHECK(text.starts_with("RIFF") && text.size() >= 12 && text.substr(8, 4) == "WEBP", kIo,
               "[texts] ", name,
               " must be a PNG, WebP, GIF or MP4, which keep what they were drawn from");
  const Mux mux = open_webp(bytes, name);
  WebPData xmp;
  if (WebPMuxGetChunk(mux.get(), "XMP ", &xmp) != WEBP_MUX_OK) {
    return {};
  }
  return xmp_texts({reinterpret_cast<const char*>(xmp.bytes), xmp.size}, name);
}

std::vector<PictureText> read_file_texts(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::string_view text = as_text(file.bytes());
  constexpr std::string_view kMp4Mark = "ftyp";
  const bool is_mp4 = text.size() >= 8 && text.substr(4, 4) == kMp4Mark;
  return is_mp4 ? VideoFile::open(path).texts() : read_texts(file.bytes(), path.string());
}

}  // namespace kinora::io
