#include "kinora/core/error.h"
#include "kinora/models/dit.h"
#include "kinora/models/latte.h"
#include "kinora/models/model.h"
#include "kinora/models/pixart.h"
#include "kinora/models/stdit.h"
#include "kinora/models/stdit2.h"
#include "kinora/models/stdit3.h"
#include "kinora/models/vdit.h"

namespace kinora::models {

std::unique_ptr<Model> make_model(const ModelConfig& config) {
  switch (config.architecture) {
    case Architecture::kAuto:
      break;
    case Architecture::kDit:
      return std::make_unique<DiT>(config);
    case Architecture::kVdit:
      return std::make_unique<VDiT>(config);
    case Architecture::kLatte:
      return std::make_unique<Latte>(config);
    case Architecture::kStdit:
      return std::make_unique<STDiT>(config);
    case Architecture::kStdit2:
      return std::make_unique<STDiT2>(config);
    case Architecture::kStdit3:
      return std::make_unique<STDiT3>(config);
    case Architecture::kPixart:
      return std::make_unique<PixArt>(config);
  }
  KINORA_UNREACHABLE("[model] an architecture that is not resolved");
}

}  // namespace kinora::models
