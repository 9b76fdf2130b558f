#include "kinora/checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/io/file.h"

namespace kinora::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

// A manifest of DiT-XL is below 100 KB; importance sampling adds 200 KB.
constexpr int64_t kMaxManifestBytes = 64 << 20;
constexpr const char* kFormat = "kinora-checkpoint";

Json state_json(const TrainingState& state) {
  Json json = {{"step", state.step},
               {"position", state.position},
               {"optimizer",
                {{"applied_steps", state.optimizer.applied_steps},
                 {"skipped_steps", state.optimizer.skipped_steps},
                 {"loss_scale", state.optimizer.loss_scale},
                 {"good_steps", state.optimizer.good_steps}}},
               {"timestep_history", state.timestep_history},
               {"timestep_counts", state.timestep_counts},
               {"config", state.config}};
  if (state.pinned) {
    json["pinned"] = {{"versions", state.pinned->versions}, {"products", state.pinned->products}};
  }
  return json;
}

TrainingState parse_state(const Json& json) {
  TrainingState state;
  json.at("step").get_to(state.step);
  json.at("position").get_to(state.position);
  const Json& optimizer = json.at("optimizer");
  optimizer.at("applied_steps").get_to(state.optimizer.applied_steps);
  optimizer.at("skipped_steps").get_to(state.optimizer.skipped_steps);
  optimizer.at("loss_scale").get_to(state.optimizer.loss_scale);
  optimizer.at("good_steps").get_to(state.optimizer.good_steps);
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

Manifest parse(const Json& json) {
  KINORA_CHECK(json.at("format") == kFormat, kIo, "format must be ", kFormat);
  KINORA_CHECK(json.at("version") == kManifestVersion, kIo, "version must be ", kManifestVersion,
               ", got ", json.at("version").dump(), ". Hint: use a newer Kinora");
  Manifest manifest;
  manifest.state = parse_state(json.at("state"));
  for (const Json& entry : json.at("buckets")) {
    optim::Bucket bucket;
    entry.at("name").get_to(bucket.name);
    entry.at("numel").get_to(bucket.numel);
    for (const Json& slot : entry.at("tensors")) {
      optim::Slot& parsed = bucket.slots.emplace_back();
      slot.at("name").get_to(parsed.path);
      slot.at("shape").get_to(parsed.shape);
      slot.at("offset").get_to(parsed.offset);
    }
    manifest.buckets.push_back(std::move(bucket));
  }
  for (const Json& entry : json.at("shards")) {
    Shard& shard = manifest.shards.emplace_back();
    entry.at("file").get_to(shard.file);
    entry.at("role").get_to(shard.role);
    entry.at("bytes").get_to(shard.num_bytes);
    entry.at("checksum").get_to(shard.checksum);
    KINORA_CHECK(!shard.file.empty() && shard.file.front() != '.' &&
                     shard.file.find('/') == std::string::npos,
                 kIo, "a shard's file must lie in the checkpoint's folder, got ",
                 quote(shard.file));
  }
  return manifest;
}

}  // namespace

std::string to_json(const Manifest& manifest) {
  Json json = {{"format", kFormat},
               {"version", kManifestVersion},
               {"state", state_json(manifest.state)},
               {"buckets", Json::array()},
               {"shards", Json::array()}};
  for (const optim::Bucket& bucket : manifest.buckets) {
    Json tensors = Json::array();
    for (const optim::Slot& slot : bucket.slots) {
      tensors.push_back(
          {{"name", slot.path}, {"shape", slot.shape}, {"dtype", "F32"}, {"offset", slot.offset}});
    }
    json["buckets"].push_back(
        {{"name", bucket.name}, {"numel", bucket.numel}, {"tensors", std::move(tensors)}});
  }
  for (const Shard& shard : manifest.shards) {
    json["shards"].push_back({{"file", shard.file},
                              {"role", shard.role},
                              {"bytes", shard.num_bytes},
                              {"checksum", shard.checksum}});
  }
  return json.dump(1) + "\n";
}

Manifest read_manifest(const std::filesystem::path& checkpoint) {
  const std::filesystem::path path = checkpoint / kManifestName;
  KINORA_CHECK(std::filesystem::exists(path), kIo, "[checkpoint] ", checkpoint,
               " is no checkpoint: it has no ", kManifestName);
  const std::string text = io::read_text(path, kMaxManifestBytes);
  try {
    return parse(Json::parse(text));
  } catch (const Json::exception& error) {
    throw_error(ErrorKind::kIo, "[checkpoint] ", path, " is damaged: ", error.what());
  } catch (const Error& error) {
    throw_error(ErrorKind::kIo, "[checkpoint] ", path, ": ", error.what());
  }
}

}  // namespace kinora::checkpoint
