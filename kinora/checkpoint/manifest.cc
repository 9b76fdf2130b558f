#include "kinora/checkpoint/manifest.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "kinora/core/build_info.h"
#include "kinora/core/error.h"
#include "kinora/core/printable.h"
#include "kinora/core/text.h"
#include "kinora/io/file.h"

namespace kinora::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

// A manifest of DiT-XL is below 100 KB; importance sampling adds 200 KB.
constexpr int64_t kMaxManifestBytes = 64 << 20;
constexpr int64_t kMostBoxes = 65536;  // ranks that divide a model
constexpr const char* kFormat = "kinora-checkpoint";

Json state_json(const TrainingState& state) {
  Json json = {{"step", state.step},
               {"position", state.position},
               {"image_position", state.image_position},
               {"optimizer",
                {{"rule", optim::to_string(state.optimizer.rule)},
                 {"applied_steps", state.optimizer.applied_steps},
                 {"skipped_steps", state.optimizer.skipped_steps},
                 {"loss_scale", state.optimizer.loss_scale},
                 {"good_steps", state.optimizer.good_steps}}},
               {"timestep_history", state.timestep_history},
               {"timestep_counts", state.timestep_counts},
               {"config", state.config}};
  if (state.optimizer.moments != kernels::MomentFormat::kF32) {
    json["optimizer"]["moments"] = optim::to_string(state.optimizer.moments);
  }
  if (state.optimizer.masters != kernels::MasterFormat::kF32) {
    json["optimizer"]["master"] = optim::to_string(state.optimizer.masters);
  }
  if (state.optimizer.rule == kernels::UpdateRule::kProdigy) {
    json["optimizer"]["distance"] = state.optimizer.distance;
    json["optimizer"]["distance_sum"] = state.optimizer.distance_sum;
  }
  if (state.optimizer.rule == kernels::UpdateRule::kScheduleFree) {
    json["optimizer"]["largest_lr"] = state.optimizer.largest_lr;
    json["optimizer"]["share_sum"] = state.optimizer.share_sum;
  }
  if (state.pinned) {
    json["pinned"] = {{"versions", state.pinned->versions}, {"products", state.pinned->products}};
  }
  return json;
}

kernels::UpdateRule rule_of(const std::string& name) {
  for (const kernels::UpdateRule rule : optim::kUpdateRules) {
    if (optim::to_string(rule) == name) {
      return rule;
    }
  }
  throw_error(ErrorKind::kIo, "[checkpoint] its moments are of the optimizer ", printable(name),
              ", which this version does not have");
}

/// Of two formats, fp32 or `other`.
template <typename Format>
Format format_of(const Json& optimizer, const char* key, Format other) {
  const std::string name = optimizer.value(key, std::string("fp32"));
  KINORA_CHECK(name == "fp32" || name == optim::to_string(other), kIo,
               "[checkpoint] its optimizer has ", key, " = ", printable(name),
               ", which this version does not have");
  return name == "fp32" ? Format::kF32 : other;
}

TrainingState parse_state(const Json& json) {
  TrainingState state;
  json.at("step").get_to(state.step);
  json.at("position").get_to(state.position);
  state.image_position = json.value("image_position", int64_t{0});
  const Json& optimizer = json.at("optimizer");
  state.optimizer.rule = rule_of(optimizer.value("rule", std::string("adamw")));
  state.optimizer.moments = format_of(optimizer, "moments", kernels::MomentFormat::k8Bit);
  state.optimizer.masters = format_of(optimizer, "master", kernels::MasterFormat::kBF16);
  optimizer.at("applied_steps").get_to(state.optimizer.applied_steps);
  optimizer.at("skipped_steps").get_to(state.optimizer.skipped_steps);
  optimizer.at("loss_scale").get_to(state.optimizer.loss_scale);
  optimizer.at("good_steps").get_to(state.optimizer.good_steps);
  if (state.optimizer.rule == kernels::UpdateRule::kProdigy) {
    optimizer.at("distance").get_to(state.optimizer.distance);
    optimizer.at("distance_sum").get_to(state.optimizer.distance_sum);
  }
  if (state.optimizer.rule == kernels::UpdateRule::kScheduleFree) {
    optimizer.at("largest_lr").get_to(state.optimizer.largest_lr);
    optimizer.at("share_sum").get_to(state.optimizer.share_sum);
  }
  json.at("timestep_history").get_to(state.timestep_history);
  json.at("timestep_counts").get_to(state.timestep_counts);
  json.at("config").get_to(state.config);
  if (const auto pinned = json.find("pinned"); pinned != json.end()) {
    state.pinned.emplace();
    pinned->at("versions").get_to(state.pinned->versions);
    pinned->at("products").get_to(state.pinned->products);
  }
  return state;
}

Json shards_json(const std::vector<Shard>& shards) {
  Json json = Json::array();
  for (const Shard& shard : shards) {
    Json& entry = json.emplace_back(Json{{"file", shard.file},
                                         {"role", shard.role},
                                         {"part", shard.part.index},
                                         {"parts", shard.part.count},
                                         {"bytes", shard.num_bytes},
                                         {"chunk_bytes", shard.chunk_bytes},
                                         {"checksums", shard.checksums}});
    if (shard.box.count > 1) {
      entry["box"] = shard.box.index;
      entry["boxes"] = shard.box.count;
    }
    if (shard.stage.count > 1) {
      entry["stage"] = shard.stage.index;
      entry["stages"] = shard.stage.count;
    }
  }
  return json;
}

Shard parse_shard(const Json& json, int64_t version) {
  Shard shard;
  json.at("file").get_to(shard.file);
  json.at("role").get_to(shard.role);
  json.at("bytes").get_to(shard.num_bytes);
  if (version == 1) {
    shard.chunk_bytes = shard.num_bytes;
    shard.checksums = {json.at("checksum").get<std::string>()};
  } else {
    json.at("part").get_to(shard.part.index);
    json.at("parts").get_to(shard.part.count);
    json.at("chunk_bytes").get_to(shard.chunk_bytes);
    json.at("checksums").get_to(shard.checksums);
    shard.box = {json.value("box", int64_t{0}), json.value("boxes", int64_t{1})};
    shard.stage = {json.value("stage", int64_t{0}), json.value("stages", int64_t{1})};
  }
  KINORA_CHECK(
      !shard.file.empty() && shard.file.front() != '.' && shard.file.find('/') == std::string::npos,
      kDamaged, "a shard's file must lie in the checkpoint's folder, got ", quote(shard.file));
  KINORA_CHECK(shard.num_bytes > 0 && shard.chunk_bytes > 0 &&
                   std::cmp_equal(shard.checksums.size(),
                                  Shard::num_chunks(shard.num_bytes, shard.chunk_bytes)),
               kDamaged, "the ", shard.num_bytes, " bytes of ", quote(shard.file),
               " must have a checksum every ", shard.chunk_bytes, ", got ", shard.checksums.size());
  KINORA_CHECK(shard.part.index >= 0 && shard.part.index < shard.part.count, kDamaged,
               "the part of ", quote(shard.file), " must be one of ", shard.part.count, ", got ",
               shard.part.index);
  KINORA_CHECK(shard.box.index >= 0 && shard.box.index < shard.box.count, kDamaged, "the box of ",
               quote(shard.file), " must be one of ", shard.box.count, ", got ", shard.box.index);
  KINORA_CHECK(shard.stage.index >= 0 && shard.stage.index < shard.stage.count, kDamaged,
               "the stage of ", quote(shard.file), " must be one of ", shard.stage.count, ", got ",
               shard.stage.index);
  return shard;
}

/// A checkpoint that this program is too old for is whole.
void check_version(const Json& json) {
  const Json& version = json.at("version");
  KINORA_CHECK(!version.is_number_integer() || version <= kManifestVersion, kIo, "version ",
               version.dump(), " of the format was written by kinora ",
               json.value("written_by", std::string("of a later version")), "; kinora ",
               build_info().version, " reads versions up to ", kManifestVersion,
               ". Hint: use the kinora that wrote it, or a later one");
  KINORA_CHECK(version.is_number_integer() && version >= 1, kDamaged,
               "version must be a number from 1 to ", kManifestVersion, ", got ", version.dump());
}

/// What of a parameter whose box has this shape is in it, of so many boxes.
nn::Box parse_box(const Json& json, const optim::Slot& slot, int64_t count) {
  nn::Box box{.count = count};
  json.at("whole").get_to(box.whole);
  json.at("dim").get_to(box.dim);
  json.at("stretches").get_to(box.stretches);
  int64_t length = 0;
  for (const int64_t stretch : box.stretches) {
    constexpr int64_t kMost = int64_t{1} << 40;
    KINORA_CHECK(stretch > 0 && stretch <= kMost && stretch % count == 0, kDamaged, slot.path,
                 " must have stretches that ", count, " boxes divide, got ", stretch);
    length += stretch;
  }
  KINORA_CHECK(box.dim >= 0 && std::cmp_less(box.dim, box.whole.size()) && count > 1 &&
                   box.whole[static_cast<size_t>(box.dim)] == length && box.shape() == slot.shape,
               kDamaged, slot.path, " is not what its box has of it");
  return box;
}

std::vector<optim::Bucket> parse_buckets(const Json& json, int64_t num_boxes) {
  std::vector<optim::Bucket> buckets;
  for (const Json& entry : json) {
    optim::Bucket bucket;
    entry.at("name").get_to(bucket.name);
    entry.at("numel").get_to(bucket.numel);
    const auto stage = entry.find("stage");
    for (const Json& slot : entry.at("tensors")) {
      optim::Slot& parsed = bucket.slots.emplace_back();
      slot.at("name").get_to(parsed.path);
      slot.at("shape").get_to(parsed.shape);
      slot.at("offset").get_to(parsed.offset);
      parsed.channels_last = slot.value("channels_last", false);
      parsed.is_matrix = slot.value("is_matrix", false);
      if (stage != entry.end()) {
        parsed.stage = stage->get<int64_t>();
      }
      if (const auto box = slot.find("box"); box != slot.end()) {
        parsed.box = parse_box(*box, parsed, num_boxes);
      }
      KINORA_CHECK(!parsed.channels_last || parsed.shape.size() > 2, kDamaged, parsed.path,
                   " must have 3 dims or more to lie in channels_last order, got ",
                   parsed.shape.size());
      const int64_t before =
          bucket.slots.size() > 1 ? bucket.slots[bucket.slots.size() - 2].offset : 0;
      KINORA_CHECK(parsed.offset >= before && parsed.offset <= bucket.numel, kDamaged, parsed.path,
                   " must lie behind ", before, " in the ", bucket.numel,
                   " elements of its bucket, got ", parsed.offset);
    }
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

Manifest parse(const Json& json) {
  KINORA_CHECK(json.at("format") == kFormat, kDamaged, "format must be ", kFormat);
  check_version(json);
  const Json& version = json.at("version");
  Manifest manifest;
  manifest.state = parse_state(json.at("state"));
  manifest.num_boxes = json.value("boxes", int64_t{1});
  KINORA_CHECK(manifest.num_boxes >= 1 && manifest.num_boxes <= kMostBoxes, kDamaged,
               "boxes must be 1 to ", kMostBoxes, ", got ", manifest.num_boxes);
  manifest.num_stages = json.value("stages", int64_t{1});
  KINORA_CHECK(manifest.num_stages >= 1 && manifest.num_stages <= kMostBoxes, kDamaged,
               "stages must be 1 to ", kMostBoxes, ", got ", manifest.num_stages);
  manifest.buckets = parse_buckets(json.at("buckets"), manifest.num_boxes);
  for (const optim::Bucket& bucket : manifest.buckets) {
    KINORA_CHECK(stage_of(bucket) >= 0 && stage_of(bucket) < manifest.num_stages, kDamaged,
                 "the stage of bucket ", bucket.name, " must be one of ", manifest.num_stages,
                 ", got ", stage_of(bucket));
  }
  for (const Json& entry : json.at("shards")) {
    manifest.shards.push_back(parse_shard(entry, version.get<int64_t>()));
  }
  return manifest;
}

Json buckets_json(const std::vector<optim::Bucket>& buckets) {
  Json json = Json::array();
  for (const optim::Bucket& bucket : buckets) {
    Json tensors = Json::array();
    for (const optim::Slot& slot : bucket.slots) {
      Json& tensor = tensors.emplace_back(Json{
          {"name", slot.path}, {"shape", slot.shape}, {"dtype", "F32"}, {"offset", slot.offset}});
      if (slot.channels_last) {
        tensor["channels_last"] = true;
      }
      if (slot.is_matrix) {
        tensor["is_matrix"] = true;
      }
      if (slot.box) {
        tensor["box"] = {
            {"whole", slot.box->whole}, {"dim", slot.box->dim}, {"stretches", slot.box->stretches}};
      }
    }
    Json& entry = json.emplace_back(
        Json{{"name", bucket.name}, {"numel", bucket.numel}, {"tensors", std::move(tensors)}});
    if (!bucket.slots.empty() && bucket.slots.front().stage) {
      entry["stage"] = *bucket.slots.front().stage;
    }
  }
  return json;
}

}  // namespace

std::string to_json(const Manifest& manifest) {
  Json json = {{"format", kFormat},
               {"version", kManifestVersion},
               {"written_by", build_info().version},
               {"state", state_json(manifest.state)},
               {"buckets", buckets_json(manifest.buckets)},
               {"shards", shards_json(manifest.shards)}};
  if (manifest.num_boxes > 1) {
    json["boxes"] = manifest.num_boxes;
  }
  if (manifest.num_stages > 1) {
    json["stages"] = manifest.num_stages;
  }
  return json.dump(1) + "\n";
}

std::string to_json(const std::vector<Shard>& shards) {
  return shards_json(shards).dump();
}

std::vector<Shard> parse_shards(const std::string& text) {
  std::vector<Shard> shards;
  for (const Json& entry : Json::parse(text)) {
    shards.push_back(parse_shard(entry, kManifestVersion));
  }
  return shards;
}

std::string to_json(const std::vector<optim::Bucket>& buckets) {
  return buckets_json(buckets).dump();
}

std::vector<optim::Bucket> parse_buckets(const std::string& text, int64_t num_boxes) {
  return parse_buckets(Json::parse(text), num_boxes);
}

Manifest read_manifest(const std::filesystem::path& checkpoint) {
  const std::filesystem::path path = checkpoint / kManifestName;
  KINORA_CHECK(std::filesystem::exists(path), kDamaged, "[checkpoint] ", checkpoint,
               " is no checkpoint: it has no ", kManifestName);
  const std::string text = io::read_text(path, kMaxManifestBytes);
  try {
    return parse(Json::parse(text));
  } catch (const Json::exception& error) {
    throw_error(ErrorKind::kDamaged, "[checkpoint] ", path, " is damaged: ", error.what());
  } catch (const Error& error) {
    throw_error(error.kind(), "[checkpoint] ", path, ": ", error.what());
  }
}

}  // namespace kinora::checkpoint
