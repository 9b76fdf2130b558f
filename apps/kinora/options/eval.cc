#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <string>

#include "apps/kinora/options/choices.h"
#include "apps/kinora/options/command.h"
#include "apps/kinora/options/numbers.h"
#include "kinora/core/error.h"

namespace kinora::apps {
namespace {

void add_network_options(CLI::App& command, EvalOptions& options) {
  command.add_option("--features", options.network.weights,
                     "Weights of the Inception of FID or of a ResNet-20 for CIFAR-10 "
                     "(.safetensors, .pth), or a description of them (.json)");
  command.add_option("--torchscript", options.network.script,
                     "A TorchScript network instead. It runs its author's code: only from people "
                     "that you trust");
  add_choice(command, "--resize", options.network.resize,
             {{"clean", eval::InputResize::kClean},
              {"pytorch", eval::InputResize::kPytorch},
              {"tensorflow", eval::InputResize::kTensorflow}},
             "How the Inception's input is resized: clean (clean-fid, the default), pytorch "
             "(pytorch-fid) or tensorflow (ADM, torch-fidelity)");
  command
      .add_option("--input-size", options.network.script_size,
                  "Pixels a side that a TorchScript network gets; default: as the samples are")
      ->check(whole(1));
  add_choice(command, "--input-range", options.network.script_range,
             {{"bytes", eval::PixelRange::kBytes},
              {"unit", eval::PixelRange::kUnit},
              {"signed", eval::PixelRange::kSigned}},
             "What a TorchScript network gets: bytes (0 to 255, the default), unit (0 to 1) or "
             "signed (-1 to 1)");
}

/// What is asked of clips by themselves goes with nothing else.
void check_clips(const EvalArguments& arguments) {
  const EvalOptions& eval = arguments.eval;
  const bool wants_consistency = std::ranges::count(eval.metrics, "consistency") > 0;
  const bool wants_motion = !arguments.interpolator.empty() || !arguments.flow.empty();
  if (!wants_consistency && !wants_motion) {
    return;
  }
  const bool is_alone = eval.metrics.size() == (wants_consistency ? 1 : 0) &&
                        eval.reference.empty() && eval.out.empty() && arguments.scenes == 0 &&
                        !arguments.pairs && (arguments.clip.empty() || wants_consistency);
  KINORA_CHECK(is_alone, kConfig,
               "[eval] consistency, --interpolator and --flow judge clips by themselves, and go "
               "with no reference, other --metrics, --out, --pairs or --scenes, and consistency "
               "alone with --clip");
  const int64_t fewest = wants_motion ? 3 : 2;
  KINORA_CHECK(eval.set.frames >= fewest, kConfig, "[eval] ",
               wants_motion ? "--interpolator and --flow need" : "consistency needs", " clips of ",
               fewest, " frames or more. Hint: --clips 16");
}

}  // namespace

void add_eval(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<EvalArguments>();
  EvalOptions& options = arguments->eval;
  CLI::App* command = app.add_subcommand(
      "eval",
      "Judge samples: Frechet distance, inception score, precision and recall, classes, CLIP "
      "score.");
  command
      ->add_option("samples", options.samples,
                   "A folder, manifest or archive of images or clips, or an .npz of images (arr_0) "
                   "or statistics (mu, sigma); for --scenes, perhaps for --clip, a run or "
                   "checkpoint")
      ->required();
  command->add_option("reference", options.reference, "What they are compared with, likewise");
  command
      ->add_option("--metrics", options.metrics,
                   "Separated by commas: frechet, fid (the same, insists on the Inception), is, "
                   "prdc, kernel, classes; of clips, alone, consistency (of their frames); "
                   "default: frechet")
      ->delimiter(',')
      ->check(CLI::IsMember({"frechet", "fid", "is", "prdc", "kernel", "classes", "consistency"}));
  add_network_options(*command, options);
  command->add_option("--out", options.out, "Write the samples' statistics to this .npz file");
  command->add_flag("--pairs", arguments->pairs,
                    "PSNR and SSIM of the images of both folders that have the same name");
  command
      ->add_option(
          "--scenes", arguments->scenes,
          "SAMPLES is a run or checkpoint of a model of captions: let it draw the first so "
          "many of the 1000 held-out scenes (of models of clips: clips of moving shapes), and "
          "judge "
          "whether every attribute and relation is right")
      ->check(CLI::Range(3, 1000));
  command
      ->add_flag("--first-frame", arguments->first_frame,
                 "With --scenes, of models of clips that go on from frames: give each clip its "
                 "first frame, and say how many keep it")
      ->needs("--scenes");
  command->add_option("--clip", arguments->clip,
                      "A folder of a CLIP (text and image tower): CLIP score of the samples with "
                      "their prompts. SAMPLES may be a run or checkpoint, which draws them");
  command
      ->add_option("--prompts", arguments->prompts,
                   "Prompts for --clip: a line a sample, or JSON, an object by file name; "
                   "default: those that the samples' files keep, or their captions")
      ->needs("--clip");
  command
      ->add_option("--guidance", arguments->guidance,
                   "Guidance of what a run draws, for --scenes and --clip; the recipe's")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--seed", arguments->seed, "Seed of what a run draws for --clip (0)");
  command->add_option("--set", arguments->overrides,
                      "key.path=value over the configuration of a run that draws");
  command
      ->add_option("--clips", options.set.frames,
                   "The samples are clips; of each so many frames are taken, from the middle")
      ->check(whole(1));
  command->add_option("--interpolator", arguments->interpolator,
                      "A TorchScript network that makes the frame between two: motion smoothness "
                      "of clips. It runs its author's code");
  command->add_option("--flow", arguments->flow,
                      "A TorchScript network of optical flow: how many clips move. It runs its "
                      "author's code");
  command->add_option("--labels", options.set.labels,
                      "JSON: an object of the samples' classes by file name");
  command->add_option("--limit", options.set.limit, "Only the first so many of each side")
      ->check(whole(1));
  command->add_option("--batch", options.batch, "Samples at once (32)")->check(whole(1));
  command->add_option("--threads", arguments->threads, "CPU threads; 0: libtorch's default")
      ->check(whole(0));
  add_device_option(*command, arguments->device);
  command->add_flag("--json", arguments->json, "Print one JSON object");
  add_rank_options(*command, arguments->ranks);
  command->callback([arguments, &chosen] {
    EvalOptions& eval = arguments->eval;
    KINORA_CHECK(!arguments->pairs || !eval.reference.empty(), kConfig,
                 "[eval] --pairs needs two folders, got one");
    if (eval.metrics.empty() && !eval.reference.empty()) {
      eval.metrics = {"frechet"};
    }
    KINORA_CHECK(!eval.metrics.empty() || !eval.out.empty() || arguments->scenes > 0 ||
                     !arguments->clip.empty() || arguments->judges_clips(),
                 kConfig,
                 "[eval] nothing is asked for. Hint: give a reference, --metrics, --clip or --out");
    check_clips(*arguments);
    KINORA_CHECK(arguments->clip.empty() || arguments->judges_clips() ||
                     (eval.metrics.empty() && eval.out.empty() && arguments->scenes == 0 &&
                      !arguments->pairs),
                 kConfig,
                 "[eval] --clip is a judge of its own, and goes with no reference, --metrics, "
                 "--out, --pairs or --scenes");
    chosen = *arguments;
  });
}

}  // namespace kinora::apps
