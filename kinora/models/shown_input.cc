#include "kinora/models/shown_input.h"

#include "kinora/core/error.h"

namespace kinora::models {

const char* to_string(ShownInput input) {
  switch (input) {
    case ShownInput::kPlain:
      return "plain";
    case ShownInput::kInpaint:
      return "inpaint";
    case ShownInput::kEdit:
      return "edit";
    case ShownInput::kFrames:
      return "frames";
    case ShownInput::kFirstFrame:
      return "first_frame";
    case ShownInput::kMarkedFirstFrame:
      return "marked_first_frame";
    case ShownInput::kFill:
      return "fill";
    case ShownInput::kReference:
      return "reference";
    case ShownInput::kSubjects:
      return "subjects";
  }
  KINORA_UNREACHABLE("[model] unknown input");
}

}  // namespace kinora::models
