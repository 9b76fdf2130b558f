#include "kinora/inference/learned_embeddings.h"

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/checkpoint/weights_output.h"
#include "kinora/core/error.h"

namespace kinora::inference {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "learned_embeds";
constexpr const char* kEnd = ".safetensors";

}  // namespace

LearnedEmbedding read_embedding(const fs::path& path) {
  const fs::path file = fs::is_directory(path) ? path / (std::string(kName) + kEnd) : path;
  KINORA_CHECK(fs::exists(file), kIo, "[embedding] ", file, " does not exist");
  const auto opened = checkpoint::WeightsFile::open(file);
  const std::vector<std::string> names = opened.names();
  KINORA_CHECK(names.size() == 1, kIo, "[embedding] ", file,
               " must have one tensor, the embedding of a token with the token for a name, got ",
               names.size());
  const at::Tensor values = opened.read(names.front()).to(at::kFloat).squeeze();
  KINORA_CHECK(values.dim() == 1, kIo, "[embedding] ", file, ": ", names.front(),
               " must be one vector, got ", values.sizes());
  return {.token = names.front(), .values = values.contiguous()};
}

void write_embeddings(const fs::path& folder, const std::vector<LearnedEmbedding>& embeddings) {
  for (size_t i = 0; i < embeddings.size(); ++i) {
    const std::string number = embeddings.size() > 1 ? "-" + std::to_string(i + 1) : "";
    checkpoint::LateTensors tensors = {
        {embeddings[i].token, checkpoint::late_tensor(embeddings[i].values)}};
    checkpoint::write_weights(folder / (kName + number + kEnd), tensors,
                              {.type = at::kFloat, .metadata = {{"format", "pt"}}});
  }
}

}  // namespace kinora::inference
