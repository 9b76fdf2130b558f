#include "kinora/pipelines/caption_embeddings.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "kinora/core/counted.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/seconds.h"
#include "kinora/core/text.h"
#include "kinora/device/host_bytes.h"
#include "kinora/io/file.h"
#include "kinora/io/file_lock.h"
#include "kinora/io/safetensors.h"
#include "kinora/pipelines/tokenizer_folder.h"

namespace kinora::pipelines {
namespace {

namespace fs = std::filesystem;

constexpr const char* kContent = "content";  // in the metadata: what the rows are made of

/// Captions as numbers, one behind the other.
struct TokenisedCaptions {
  std::vector<int32_t> ids;
  std::vector<int64_t> ends;
  int64_t cut = 0;

  [[nodiscard]] int64_t size() const { return std::ssize(ends); }
  [[nodiscard]] std::span<const int32_t> at(int64_t i) const {
    const int64_t begin = i == 0 ? 0 : ends[static_cast<size_t>(i - 1)];
    return std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(length(i)));
  }
  [[nodiscard]] int64_t length(int64_t i) const {
    return ends[static_cast<size_t>(i)] - (i == 0 ? 0 : ends[static_cast<size_t>(i - 1)]);
  }
};

TokenisedCaptions tokenise(std::span<const std::string> captions, const data::CaptionTokens& how,
                           const CaptionEmbeddingOptions& options) {
  TokenisedCaptions result;
  std::string example;
  for (const std::string& caption : captions) {
    const tokenizers::Tokens tokens = data::encode(how, caption);
    KINORA_CHECK(!tokens.ids.empty(), kConfig, "[captions] the caption ", data::shortened(caption),
                 " must have a token, got none");
    if (tokens.num_cut > 0 && ++result.cut == 1) {
      example = data::shortened(tokens.cut) + " of " + data::shortened(caption);
    }
    result.ids.insert(result.ids.end(), tokens.ids.begin(), tokens.ids.end());
    result.ends.push_back(std::ssize(result.ids));
  }
  if (result.cut > 0 && options.ranks.rank() == 0) {
    log_warn("[captions] ", result.cut, " of ", counted(result.size(), "caption"),
             " are cut off after ", data::own_length(how), " tokens, such as ", example);
  }
  return result;
}

/// The tensors of the file and where their values lie.
struct TextFileLayout {
  TextFileLayout(std::span<const std::string> captions, const TokenisedCaptions& tokens,
                 const models::TextEncoder& encoder, const CaptionEmbeddingOptions& options)
      : dtype(options.dtype), channels(encoder.width()), pooled_channels(encoder.pooled_width()) {
    const int64_t count = tokens.size();
    std::vector<int64_t> key_ends;
    std::string keys;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t states = encoder.num_states(tokens.length(i));
      length = std::max(length, states);
      first_tokens.push_back(num_tokens);
      num_tokens += states;
      lengths.push_back(states);
      if (options.keyed) {
        keys += captions[static_cast<size_t>(i)];
        key_ends.push_back(std::ssize(keys));
      }
    }
    value_bytes = static_cast<int64_t>(size_of(options.dtype));
    // In the order of falling element size, as the format's writers lay them out.
    add({"lengths", DType::kI64, {count}}, bytes_of(lengths));
    if (options.keyed) {
      add({"key_ends", DType::kI64, {count}}, bytes_of(key_ends));
    }
    embeddings_at = add({"embeddings", options.dtype, {num_tokens, channels}}, {});
    if (pooled_channels > 0) {
      pooled_at = add({"pooled", options.dtype, {count, pooled_channels}}, {});
    }
    if (options.keyed) {
      add({"keys", DType::kU8, {std::ssize(keys)}}, keys);
    }
    // All that the rows depend on, but for their rounding.
    io::Checksum checksum;
    const auto update = [&checksum](std::string_view bytes) {
      checksum.update(std::as_bytes(std::span(bytes)));
    };
    update(io::safetensors_header(specs, options.metadata));
    update(small);
    update({reinterpret_cast<const char*>(tokens.ids.data()),
            tokens.ids.size() * sizeof(tokens.ids[0])});
    content = checksum.hex();
    std::map<std::string, std::string> metadata = options.metadata;
    metadata[kContent] = content;
    if (options.keyed) {
      metadata["keyed_by"] = "caption";
    }
    header = io::safetensors_header(specs, metadata);
  }

  DType dtype;
  int64_t length = 0;  ///< L
  int64_t num_tokens = 0;
  int64_t channels = 0;
  int64_t pooled_channels = 0;
  int64_t value_bytes = 0;
  std::vector<int64_t> lengths;
  std::vector<int64_t> first_tokens;
  std::vector<io::SafetensorsSpec> specs;
  std::string header;
  std::string content;
  // Behind the header:
  int64_t embeddings_at = 0;
  int64_t pooled_at = 0;
  int64_t data_bytes = 0;
  std::vector<std::pair<int64_t, std::string>> known;  ///< what is not computed, and its place
  std::string small;                                   ///< the same in one

 private:
  static std::string_view bytes_of(const std::vector<int64_t>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t)};
  }
  /// Where the tensor begins.
  int64_t add(io::SafetensorsSpec spec, std::string_view bytes) {
    const int64_t place = data_bytes;
    data_bytes += std::accumulate(spec.shape.begin(), spec.shape.end(),
                                  static_cast<int64_t>(size_of(spec.dtype)), std::multiplies<>());
    specs.push_back(std::move(spec));
    if (!bytes.empty()) {
      known.emplace_back(place, bytes);
      small += bytes;
    }
    return place;
  }
};

/// OUT.partial and, in OUT.partial.json, how many captions in the order of their computation it
/// holds. It begins with zeros until it is whole, so no reader takes it for a file of texts.
class PartialTextFile {
 public:
  PartialTextFile(const fs::path& out, const TextFileLayout& layout, const comm::Group& ranks,
                  at::Device device)
      : out_(out),
        partial_(out.string() + ".partial"),
        record_(out.string() + ".partial.json"),
        layout_(layout),
        ranks_(ranks) {
    if (ranks.rank() == 0) {
      open();
    }
    // [whether the file is complete, what is done]
    at::Tensor found = at::zeros({2}, at::kLong);
    if (ranks.rank() == 0) {
      found[0] = writer_ ? 0 : 1;
      found[1] = done_;
    }
    found = found.to(device);
    ranks.all_reduce(found);
    done_ = found[1].item<int64_t>();
    if (ranks.rank() != 0 && found[0].item<int64_t>() == 0) {
      writer_.emplace(partial_, io::FileWriter::Create::kKeep);
    }
  }

  /// Of `out`.
  [[nodiscard]] bool is_complete() const { return !writer_; }
  [[nodiscard]] int64_t done() const { return done_; }
  [[nodiscard]] int64_t num_bytes() const {
    return std::ssize(layout_.header) + layout_.data_bytes;
  }

  void write(int64_t place, std::span<const std::byte> bytes) {
    writer_->write_at(std::ssize(layout_.header) + place, bytes);
  }

  /// All that ranks have written so far is to stay.
  void save(int64_t done) {
    writer_->sync();
    ranks_.barrier();
    if (ranks_.rank() == 0) {
      const nlohmann::json record = {{"content", layout_.content}, {"done", done}};
      io::write_file_atomic(record_, record.dump());
    }
    done_ = done;
  }

  void finish() {
    writer_->sync();
    ranks_.barrier();
    if (ranks_.rank() == 0) {
      for (const auto& [place, bytes] : layout_.known) {
        write(place, std::as_bytes(std::span(bytes)));
      }
      writer_->sync();
      writer_->write_at(0, std::as_bytes(std::span(layout_.header)));
      writer_->sync();
    }
    writer_->close();
    if (ranks_.rank() == 0) {
      io::rename_durably(partial_, out_);
      fs::remove(record_);
    }
  }

 private:
  /// Of rank 0, before the others look for it.
  void open() {
    std::optional<io::FileLock> lock = io::FileLock::take(partial_);
    KINORA_CHECK(lock, kIo, "[captions] another process writes ", out_.string(),
                 ". Hint: stop it, or give another --out");
    lock_ = std::move(*lock);
    if (is_whole()) {
      remove();
      return;
    }
    done_ = read_record();
    if (done_ == 0) {
      fs::remove(record_);
      io::FileWriter(partial_).close();
    }
    writer_.emplace(partial_, io::FileWriter::Create::kKeep);
    std::error_code failure;
    fs::resize_file(partial_, static_cast<uintmax_t>(num_bytes()), failure);
    KINORA_CHECK(!failure, kIo, "[captions] cannot make ", partial_.string(), " of ",
                 human_bytes(num_bytes()), ": ", failure.message());
  }

  [[nodiscard]] bool is_whole() const {
    if (!fs::exists(out_)) {
      return false;
    }
    try {
      const io::SafetensorsFile file = io::SafetensorsFile::open(out_);
      const auto content = file.metadata().find(kContent);
      return content != file.metadata().end() && content->second == layout_.content;
    } catch (const Error&) {
      return false;
    }
  }

  void remove() const {
    fs::remove(partial_);
    fs::remove(record_);
  }

  /// 0 for what is of other captions or another encoder.
  [[nodiscard]] int64_t read_record() const {
    constexpr int64_t kMostBytes = 1 << 12;
    std::error_code failure;
    const bool is_of_size =
        fs::file_size(partial_, failure) == static_cast<uintmax_t>(num_bytes()) && !failure;
    if (!is_of_size || !fs::exists(record_)) {
      return 0;
    }
    const auto record = nlohmann::json::parse(io::read_text(record_, kMostBytes), nullptr,
                                              /*allow_exceptions=*/false);
    const bool is_ours = record.is_object() && record.value("content", nlohmann::json()) ==
                                                   nlohmann::json(layout_.content);
    const nlohmann::json done = is_ours ? record.value("done", nlohmann::json()) : nlohmann::json();
    return done.is_number_unsigned()
               ? std::min<int64_t>(done.get<int64_t>(), std::ssize(layout_.lengths))
               : 0;
  }

  fs::path out_;
  fs::path partial_;
  fs::path record_;
  const TextFileLayout& layout_;
  const comm::Group& ranks_;
  std::optional<io::FileLock> lock_;
  std::optional<io::FileWriter> writer_;
  int64_t done_ = 0;
};

/// Computes some captions and writes their rows.
void write_rows(std::span<const int64_t> rows, std::span<const std::string> captions,
                const TokenisedCaptions& tokens, models::TextEncoder& encoder,
                const TextFileLayout& layout, PartialTextFile& file) {
  const at::ScalarType type = device::scalar_type(layout.dtype);
  models::TextTokens batch;
  for (const int64_t row : rows) {
    batch.add(tokens.at(row));
  }
  const models::TextStates out = encoder.encode(batch);
  const at::Tensor states = out.states.to(type).to(at::kCPU).contiguous();  // [tokens, C]
  const at::Tensor pooled =
      layout.pooled_channels > 0 ? out.pooled.to(type).to(at::kCPU).contiguous() : at::Tensor();
  const int64_t token_bytes = layout.channels * layout.value_bytes;
  const int64_t pooled_bytes = layout.pooled_channels * layout.value_bytes;
  int64_t first = 0;
  for (int64_t i = 0; i < std::ssize(rows); ++i) {
    const int64_t row = rows[static_cast<size_t>(i)];
    const int64_t length = encoder.num_states(tokens.length(row));
    const at::Tensor own = states.narrow(0, first, length);
    const bool is_finite = at::isfinite(own).all().item<bool>() &&
                           (!pooled.defined() || at::isfinite(pooled[i]).all().item<bool>());
    KINORA_CHECK(is_finite, kConfig, "[captions] the embedding of ",
                 data::shortened(captions[static_cast<size_t>(row)]), " is not finite as ",
                 to_string(layout.dtype), ". Hint: --precision bf16, --dtype bf16");
    file.write(layout.embeddings_at + layout.first_tokens[static_cast<size_t>(row)] * token_bytes,
               device::bytes_of(own));
    if (pooled.defined()) {
      file.write(layout.pooled_at + row * pooled_bytes, device::bytes_of(pooled[i]));
    }
    first += length;
  }
}

/// Which of them hold on any rank.
std::array<bool, 2> of_any_rank(const CaptionEmbeddingOptions& options,
                                const std::array<bool, 2>& own) {
  if (options.ranks.size() == 1) {
    return own;
  }
  const at::Tensor any =
      at::tensor({int64_t{own[0]}, int64_t{own[1]}}, at::kLong).to(options.device);
  options.ranks.all_reduce(any, comm::Reduction::kMax);
  const at::Tensor found = any.to(at::kCPU);
  return {found[0].item<int64_t>() > 0, found[1].item<int64_t>() > 0};
}

}  // namespace

CaptionEmbeddingResult encode_captions(std::span<const std::string> captions,
                                       models::TextEncoder& encoder, const data::CaptionTokens& how,
                                       const CaptionEmbeddingOptions& options,
                                       const StopSignal* stop) {
  using Clock = std::chrono::steady_clock;
  KINORA_CHECK(!captions.empty(), kConfig, "[captions] there must be at least one caption");
  check_vocabulary(*how.tokenizer, "the text encoder", encoder.vocab_size());
  const at::NoGradGuard no_grad;
  const TokenisedCaptions tokens = tokenise(captions, how, options);
  const TextFileLayout layout(captions, tokens, encoder, options);
  PartialTextFile file(options.out, layout, options.ranks, options.device);
  const int64_t total = tokens.size();
  CaptionEmbeddingResult result{.complete = file.is_complete(),
                                .cut = tokens.cut,
                                .length = layout.length,
                                .num_bytes = file.num_bytes()};
  if (result.complete) {
    return result;
  }
  const int64_t wanted = layout.num_tokens * layout.channels * layout.value_bytes;
  const int64_t room = io::free_space(fs::absolute(options.out).parent_path());
  KINORA_CHECK(options.ranks.rank() > 0 || file.done() > 0 || wanted <= room, kIo, "[captions] ",
               options.out.string(), " needs about ", human_bytes(wanted), ", but only ",
               human_bytes(room), " are free. Hint: --dtype bf16, or another --out");
  std::vector<int64_t> order(static_cast<size_t>(total));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](int64_t a, int64_t b) { return tokens.length(a) > tokens.length(b); });
  const int64_t before = file.done();
  const auto report = [&](int64_t done) {
    if (options.progress) {
      options.progress(done, total, before);
    }
  };
  report(before);
  Clock::time_point saved = Clock::now();
  for (int64_t first = before; first < total;) {  // a batch of each rank
    const int64_t own = std::min(first + options.ranks.rank() * options.batch, total);
    const int64_t own_end = std::min(own + options.batch, total);
    const int64_t end = std::min(first + options.ranks.size() * options.batch, total);
    if (own < own_end) {
      write_rows(
          std::span(order).subspan(static_cast<size_t>(own), static_cast<size_t>(own_end - own)),
          captions, tokens, encoder, layout, file);
    }
    first = end;
    result.computed = end - before;
    report(end);
    const auto [stopped, saves] = of_any_rank(
        options,
        {stop != nullptr && stop->requested(), seconds_since(saved) >= options.save_seconds});
    if (end < total && (stopped || saves)) {
      file.save(end);
      saved = Clock::now();
    }
    if (stopped && end < total) {
      if (options.ranks.rank() == 0) {
        log_info("[captions] stopped by ",
                 stop != nullptr && stop->requested() ? stop->name() : "another rank", ": ",
                 total - end, " of ", counted(total, "caption"),
                 " are left; the same command goes on with them");
      }
      return result;
    }
  }
  file.finish();
  result.complete = true;
  return result;
}

}  // namespace kinora::pipelines
