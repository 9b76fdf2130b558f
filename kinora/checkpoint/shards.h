#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/checkpoint/manifest.h"
#include "kinora/checkpoint/staging.h"
#include "kinora/comm/group.h"
#include "kinora/io/file.h"
#include "kinora/optim/arena.h"

/// The files with the arrays of the arena: safetensors, one a role and part, whose tensors are the
/// parts of all buckets.
namespace kinora::checkpoint {

/// What this rank writes, so that the disk's work is divided equally: ranks that own the same slice
/// of the same boxes divide it again. Where buckets do not divide so often, the first of those
/// writes it, and the others get nothing. All ranks of `world` call it.
[[nodiscard]] std::optional<Part> part_of_rank(const optim::Arena& arena, const comm::Group& world);

/// What a manifest says of the arena's buckets, and of those of other stages. All ranks of `world`
/// call it.
[[nodiscard]] std::vector<optim::Bucket> buckets_of_stages(const optim::Arena& arena,
                                                           const comm::Group& world);

/// A file to be written.
struct ShardFile {
  Shard shard;                     ///< checksums empty until written
  std::string header;              ///< of the safetensors format
  std::vector<at::Tensor> arrays;  ///< one a bucket: what follows the header
};

/// The files of a part, over the arena's own arrays: "ema.0.safetensors", or of several parts
/// "ema.0-00002-of-00004.safetensors", of boxes "ema.0-box-1-of-2-00002-of-00004.safetensors", and
/// of stages "ema.0-stage-1-of-2.safetensors".
[[nodiscard]] std::vector<ShardFile> shard_files(const optim::Arena& arena, Part part);

/// Writes the files into `folder`, durably, and sets their checksums. kIo.
void write_shards(const std::filesystem::path& folder, std::vector<ShardFile>& files,
                  Staging& staging);

/// The parts of a role, in order, of the boxes of all numbers and of all stages one behind the
/// other. kIo if one is missing.
[[nodiscard]] std::vector<Shard> shards_of(const Manifest& manifest,
                                           const std::filesystem::path& checkpoint,
                                           const std::string& role);

/// Compares the sizes of files. kIo.
void check_sizes(const std::filesystem::path& checkpoint, const std::vector<Shard>& shards);

/// Compares checksums: `share.index` of `share.count` almost equal shares of all chunks. kIo,
/// naming the file.
void check_content(const std::filesystem::path& checkpoint, std::vector<Shard> shards, Part share,
                   Staging& staging);

/// One role of a checkpoint, as an array a bucket: of the boxes of one number, of all stages.
class RoleReader {
 public:
  /// kIo for files that do not hold the manifest's buckets.
  RoleReader(const std::filesystem::path& checkpoint, const Manifest& manifest, optim::Role role,
             int64_t box);

  /// Of bucket number `bucket`: fp32, or bf16 of masters and uint8 of moments.
  [[nodiscard]] at::ScalarType type(size_t bucket) const { return types_[bucket]; }
  /// Fills `out`, contiguous and of type(bucket) on the CPU, with the array's elements from `begin`
  /// on. Threads may read at once. kIo.
  void read(size_t bucket, int64_t begin, const at::Tensor& out) const;

 private:
  void add_stage(const std::filesystem::path& checkpoint, const Manifest& manifest,
                 optim::Role role, const std::vector<Shard>& shards, int64_t stage);

  /// A part of every bucket of a stage.
  struct File {
    std::unique_ptr<io::FileReader> reader;
    std::vector<int64_t> offsets;  // [bucket], bytes from the file's start
  };

  std::vector<File> files_;
  std::vector<size_t> first_file_;                 // [bucket]: of its stage
  std::vector<std::vector<int64_t>> part_begins_;  // [bucket][part], and the end
  std::vector<at::ScalarType> types_;              // [bucket]
};

/// Those of all boxes, by number.
[[nodiscard]] std::vector<RoleReader> readers_of(const std::filesystem::path& checkpoint,
                                                 const Manifest& manifest, optim::Role role);

/// A parameter from its boxes, in its whole shape, on the CPU in the type that it was kept in. kIo.
[[nodiscard]] at::Tensor read_whole(const std::vector<RoleReader>& boxes, const Manifest& manifest,
                                    size_t bucket, const optim::Slot& slot, optim::Role role);

/// Where elements of a role go.
struct ReadTarget {
  const RoleReader* reader;
  size_t bucket;
  int64_t begin;      ///< in the bucket's array
  at::Tensor values;  ///< one dim, of any device, and of any floating type where the array's is
};

/// Fills all targets. kIo.
void read_into(const std::vector<ReadTarget>& targets, Staging& staging);

/// Where elements of a parameter go that was divided into other boxes when it was written. All in C
/// order.
struct BoxTarget {
  const std::vector<RoleReader>* boxes;  ///< the role's, of one element for each of a bucket
  size_t bucket;
  const optim::Slot* from;  ///< as it was written
  const optim::Slot* to;    ///< as it is now
  int64_t begin;            ///< of `values`, in what the box of `to` has
  at::Tensor values;        ///< as in ReadTarget
};

/// Fills all targets, and reads little more than what they need. kIo.
void read_into(const std::vector<BoxTarget>& targets, Staging& staging);

}  // namespace kinora::checkpoint
