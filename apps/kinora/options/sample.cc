#include <CLI/CLI.hpp>

#include <charconv>
#include <memory>
#include <string_view>
#include <system_error>

#include "apps/kinora/options/choices.h"
#include "apps/kinora/options/command.h"
#include "apps/kinora/options/numbers.h"
#include "kinora/core/error.h"

namespace kinora::apps {
namespace {

constexpr int kMostCaptions = 1 << 20;  // on a command line

/// Whose weights, and what to show.
void add_what(CLI::App& command, SampleArguments& arguments) {
  command.add_option(
      "--like", arguments.like,
      "Draw again what this png, webp, gif or mp4 of kinora sample was drawn from; options "
      "beside it count instead");
  command.add_option("--run", arguments.run, "A run directory; its newest checkpoint is used");
  command.add_option(
      "--checkpoint,--model", arguments.checkpoint,
      "A checkpoint's folder, a file of weights (.safetensors, .pt), or a folder of "
      "diffusers: a transformer or U-Net, or a whole pipeline of DiT, PixArt, Latte "
      "or Stable Diffusion 1, 2 and XL; the same in one file (.safetensors, .ckpt); "
      "Open-Sora's transformer, with vae/ and text_encoder/; or the folder of Open-Sora 2");
  command.add_option("--config", arguments.config,
                     "Recipe of the model, for files that do not hold it");
  command.add_option("--set", arguments.overrides, "key.path=value over the run's configuration");
  command.add_option("--weights", arguments.weights, "ema (averaged) or raw")
      ->check(CLI::IsMember({"ema", "raw"}));
  command.add_option("--lora", arguments.adapters,
                     "An adapter to merge, FILE or FILE:WEIGHT (1 = as it was trained): "
                     "safetensors, or a folder of PEFT; several by giving it again");
  command.add_option("--low-noise-lora", arguments.low_noise_adapters,
                     "Of Wan 2.2 the same for the second expert, which predicts at low noise; "
                     "--lora is for the first");
  command
      .add_option("--classes", arguments.classes,
                  "Classes by number or name: 0,1,2 or cat,dog; default: all")
      ->delimiter(',');
  command
      .add_option("--captions,--prompt", arguments.request.captions,
                  "Captions, each in quotes, for pipelines and for runs with text.encoder or "
                  "model.text_encoder; default: the texts of the run's first samples")
      ->type_name("TEXT ...")
      // Of an option that takes words without end, CLI11 splits "[a cat, a dog]" at the commas.
      ->expected(1, kMostCaptions)
      ->allow_extra_args(false);
  command.add_option("--captions-file,--layout", arguments.captions_file,
                     "The same from a file, one a line; of models of layouts, a layout a line");
  command.add_option("--negative", arguments.negative,
                     "Of pipelines: a caption to guide away from; default: the empty one");
  command.add_flag("!--no-cleaning", arguments.cleans_captions,
                   "Of pipelines: captions are only made lower case, where else addresses, tags "
                   "and odd punctuation are left out");
  command.add_option(
      "--text-encoder", arguments.text_encoder,
      "Of pipelines: a folder of T5, CLIP or BERT with its tokenizer, or a file of it, "
      "instead of their own");
  command.add_option(
      "--tokenizer", arguments.tokenizer,
      "Of pipelines: the folder of the tokenizer, of latent diffusion's layouts a file "
      "of classes, one a line; default: theirs, of one file tokenizer/ or classes.txt "
      "beside it");
  command.add_option("--embedding", arguments.embeddings,
                     "Of pipelines of Stable Diffusion: a token that was learned (textual "
                     "inversion), a file as diffusers has it; several by giving it again");
  command
      .add_option("--aesthetic-score", arguments.scores.aesthetic,
                  "Of Open-Sora 1: what its prompts end with; default: 6.5")
      ->check(real(0.0, 10.0));
  command
      .add_option("--motion-score", arguments.scores.motion,
                  "Of Open-Sora likewise; default: not said, of Open-Sora 2 4")
      ->check(real(0.0, 1000.0));
  command.add_option("--camera-motion", arguments.scores.camera_motion,
                     "Of Open-Sora 1 likewise, such as pan right; default: not said");
  add_choice(command, "--prompt-weights", arguments.prompt_weights,
             {{"off", inference::PromptWeights::kOff},
              {"a1111", inference::PromptWeights::kA1111},
              {"compel", inference::PromptWeights::kCompel}},
             "Of pipelines, how weights in captions are written: a1111, (red:1.3) [red]; "
             "compel, red++ red- (a phrase)1.3; off, brackets and signs are text; default: off");
  command.add_option("--wildcards", arguments.request.wildcards,
                     "A folder of lists: __animal__ in a caption becomes a line of animal.txt");
  command.add_option("--text-embeddings", arguments.request.text_embeddings,
                     "Embedded texts, a file as for data.text_embeddings; its rows in order");
  command
      .add_option("--count", arguments.request.count,
                  "Samples in all; the classes or captions take turns")
      ->check(whole(1));
  command
      .add_option("--only", arguments.only,
                  "Draw this sample of them alone, 0 for the first, with its batch")
      ->check(whole(0));
}

/// FRAME=FILE or FRAME=FILE:STRENGTH.
inference::PlacedFrames parse_placed(const std::string& text) {
  const size_t equals = text.find('=');
  inference::PlacedFrames placed;
  const auto reads = [](std::string_view digits, auto& number) {
    const char* const end = digits.data() + digits.size();
    const auto read = std::from_chars(digits.data(), end, number);
    return !digits.empty() && read.ec == std::errc() && read.ptr == end;
  };
  KINORA_CHECK(equals != std::string::npos && equals + 1 < text.size() &&
                   reads(std::string_view(text).substr(0, equals), placed.frame),
               kConfig, "[sample] --at must be FRAME=FILE or FRAME=FILE:STRENGTH, got ", text);
  placed.path = text.substr(equals + 1);
  const size_t colon = placed.path.rfind(':');
  if (colon != std::string::npos &&
      reads(std::string_view(placed.path).substr(colon + 1), placed.strength)) {
    placed.path.resize(colon);
  }
  return placed;
}

void add_clip(CLI::App& command, SampleArguments& arguments) {
  command
      .add_option("--frames", arguments.options.size.frames,
                  "Frames of a clip; models of architecture stdit2 and stdit3")
      ->check(whole(1));
  command.add_option("--height", arguments.options.size.height, "In pixels; the same models")
      ->check(whole(1));
  command.add_option("--width", arguments.options.size.width, "In pixels; the same models")
      ->check(whole(1));
  command
      .add_option("--fps", arguments.options.fps, "Frames a second of clips; default: the run's")
      ->check(real(0.001, 1000.0));
  command.add_option(
      "--last", arguments.options.last,
      "Of clips: the last frame, a picture; or a video whose last --video-frames are "
      "the last ones");
  command.add_option("--video", arguments.options.video,
                     "Of clips: a video whose first --video-frames are the first ones");
  command.add_option("--at", arguments.at,
                     "Of clips of LTX-Video from 0.9.5 on: FRAME=FILE, a picture or a video from "
                     "that frame on, 0 for the first; FRAME=FILE:STRENGTH keeps less of it, 0 to "
                     "1; several by giving it again");
  command
      .add_option("--video-frames", arguments.options.video_frames,
                  "How many frames of --video, and of a video of --last, are given")
      ->check(whole(1))
      ->capture_default_str();
  CLI::Option* given = command.add_option(
      "--given,--image", arguments.options.given,
      "Of models of pictures: --init. Of clips a reference, some frames: an image, a "
      "strip, a folder of frames, a video file "
      "(its first frames at the clips' rate: as many as --given-frames numbers, else half a clip), "
      "which the autoencoder encodes for models of latents; or latents, a safetensors file; of "
      "several, clip i takes them in turn");
  command
      .add_option("--image-model", arguments.image_model,
                  "Of clips: a model of pictures (a run, a pipeline's folder or file) that draws "
                  "the first frame of each from the same caption, into first-frames/ of --out")
      ->excludes(given);
  command
      .add_option("--given-frames", arguments.options.given_frames,
                  "Which frames these are: head, tail, head_tail, or numbers as 0,1,7")
      ->capture_default_str()
      ->needs(given);
  add_choice(command, "--frame-layout", arguments.options.frame_layout,
             {{"image", data::FrameLayout::kImage}, {"strip", data::FrameLayout::kStrip}},
             "What the reference's image holds: image, or strip (square frames side by side); "
             "default: image")
      ->needs(given);
  command
      .add_option("--given-edit", arguments.options.given_edit,
                  "Of flows: the noise level, 0 to 1, from which on these frames are drawn, too; 0 "
                  "keeps them as they are")
      ->check(real(0.0, 1.0))
      ->needs(given);
  CLI::Option* loop = command.add_option("--loop", arguments.options.pieces,
                                         "Pieces of a longer clip, each going on from the last");
  loop->check(whole(1));
  command
      .add_option("--overlap", arguments.options.overlap,
                  "Last frames of a piece that are the first ones of the next")
      ->check(whole(0))
      ->needs(loop);
}

/// What samples begin with, and what is kept of them on their way.
void add_start(CLI::App& command, SampleArguments& arguments) {
  command.add_option("--init", arguments.init,
                     "Pictures to begin with (image to image), cropped to the size that is drawn; "
                     "of clips a folder of frames or a video file; sample i begins with file i, in "
                     "turn");
  command.add_option("--mask", arguments.mask,
                     "Which part of --init is drawn anew: a grey picture of its size, white there; "
                     "one for all, or one for each");
  command.add_flag("--keep-image-size", arguments.keep_image_size,
                   "Of Flux Kontext: the picture that is changed is shown in its own size, and not "
                   "in the nearest one of training");
  command.add_option("--reference", arguments.references,
                     "Of models with model.references: a picture of what is to be seen, such as a "
                     "character, for all samples; several by giving it again");
  command.add_option("--controlnet", arguments.controlnets,
                     "A folder of a ControlNetModel of diffusers beside a U-Net; several by giving "
                     "it again; default: those of the pipeline or run");
  command.add_option("--control", arguments.control,
                     "What it is shown, a picture of the size that is drawn; of several "
                     "ControlNets one for each, in their order; of more, sample i takes those in "
                     "turn");
  command
      .add_option("--control-scale", arguments.control_scales,
                  "What a ControlNet adds is multiplied by it: one for all, or one for each; "
                  "default: 1")
      ->check(real(-100.0, 100.0));
  command.add_option(
      "--ip-adapter", arguments.ip_adapter,
      "An IP-Adapter beside a U-Net of Stable Diffusion, a file as they are published "
      "(.safetensors, .bin): a picture prompts beside the text");
  command.add_option("--ip-image", arguments.ip_images,
                     "That picture; of several, sample i takes them in turn");
  command
      .add_option("--ip-scale", arguments.ip_scale,
                  "What attention to the picture is multiplied by; default: 1")
      ->check(real(-100.0, 100.0));
  command.add_option("--ip-encoder", arguments.ip_encoder,
                     "The folder of the image encoder (CLIPVisionModelWithProjection); default: "
                     "image_encoder/ beside --ip-adapter");
  command.add_option("--latents", arguments.latents,
                     "Latents to begin with, a safetensors file; without --strength they are only "
                     "decoded");
  command
      .add_option("--strength", arguments.strength,
                  "How much of --init or --latents is drawn anew: the last int(steps * strength) "
                  "steps; default: 0.8 of --init, with --mask 1, 0.4 of --upsample")
      ->check(real(0.0, 1.0));
  CLI::Option* upsample = command.add_option(
      "--upsample", arguments.upsample,
      "Of LTX-Video: the folder of its latent upsampler (LTXLatentUpsamplePipeline). Clips are "
      "drawn half as high and wide, into small/ of --out, doubled as latents and drawn on");
  command
      .add_option("--upsample-steps", arguments.upsample_steps,
                  "Steps of which the last --strength draw on; default: 10")
      ->check(whole(1, pipelines::kMostSteps))
      ->needs(upsample);
  command
      .add_option("--upsample-adain", arguments.upsample_adain,
                  "How far channels get the mean and deviation that they had small, 0 to 1; "
                  "default: 0")
      ->check(real(0.0, 1.0))
      ->needs(upsample);
  command
      .add_option("--upsample-tones", arguments.upsample_tones,
                  "How far large values of the doubled latents become smaller, 0 to 1; default: 0")
      ->check(real(0.0, 1.0))
      ->needs(upsample);
  command.add_option("--noise", arguments.noise,
                     "A safetensors file of noise [N, C, ...] in the place of the seed's; sample i "
                     "takes row i, in turn");
  command.add_flag("--save-latents", arguments.save_latents,
                   "Write latents.safetensors beside the pictures");
  CLI::Option* preview =
      command.add_option("--preview", arguments.preview,
                         "Write preview.png to --out every so many steps: the picture on its way");
  preview->check(whole(1));
  command
      .add_option("--preview-decoder", arguments.preview_decoder,
                  "An autoencoder that decodes previews, such as a folder of TAESD")
      ->needs(preview);
}

/// How to compute, and what to do with the samples.
void add_how(CLI::App& command, SampleArguments& arguments) {
  command
      .add_option("--batch", arguments.options.batch,
                  "Samples computed at once; does not change them")
      ->check(whole(1));
  command.add_option("--sampler", arguments.sampler,
                     "Method: another name of --set sample.method=...; default: the run's");
  command.add_option("--steps", arguments.options.steps, "Sampling steps; default: the run's")
      ->check(whole(1, pipelines::kMostSteps));
  command
      .add_option("--guidance", arguments.request.guidance, "Guidance scale; default: the run's")
      ->check(real(0.0, pipelines::kMostGuidance));
  command
      .add_option("--image-guidance", arguments.image_guidance,
                  "Of models that change a picture (instruct-pix2pix) or are shown references: "
                  "guidance scale of --init or --reference; "
                  "another name of --set sample.given_guidance=...")
      ->check(real(1.0, pipelines::kMostGuidance));
  command.add_option("--seed", arguments.request.seed, "Seed of the noise")->check(whole(0));
  command.add_option("--autoencoder", arguments.autoencoder,
                     "Of models of latents: a folder or file that makes pictures of them; default: "
                     "the run's autoencoder.path");
  command
      .add_option(
          "--memory-budget", arguments.memory_budget,
          "GiB that the autoencoder's activations may take, 0 = no limit, default: the run's "
          "autoencoder.memory_gib; and, before, the weights of a pipeline's text encoder, "
          "0 = what is free")
      ->check(real(0.0));
  command.add_flag("--cache-price", arguments.cache_price,
                   "With sample.cache or sample.patches: draw the first batch without it, too, and "
                   "say how fast and how near both are");
  command.add_option("--out", arguments.out,
                     "Folder for the samples; the same command goes on with those that it lacks");
  command.add_flag("--overwrite", arguments.overwrite,
                   "Remove the samples of another drawing from it first");
  add_choice(
      command, "--format", arguments.format,
      {{"png", inference::FileFormat::kPng},
       {"webp", inference::FileFormat::kWebp},
       {"gif", inference::FileFormat::kGif},
       {"mp4", inference::FileFormat::kMp4}},
      "png (of clips a folder of frames), webp, gif or mp4; default: png, and webp of clips");
  command.add_flag("--judge", arguments.judge,
                   "Tell how many show what was asked, for data.source shapes and moving_shapes "
                   "and for strips of two motions");
  command.add_flag("--verbose", arguments.verbose,
                   "Say what is really encoded: cleaned texts, their tokens and weights, what is "
                   "cut off");
  command.add_flag("--json", arguments.json, "Print what was done as JSON");
  add_device_option(command, arguments.device);
  add_choice(command, "--precision", arguments.precision, precisions(),
             "fp32, bf16, fp16; default: the run's");
  add_choice(command, "--quantise", arguments.quantise, weight_formats(),
             "int8, fp8, nf4: what the weights of blocks lie in; default: --precision");
  command
      .add_option(
          "--offload", arguments.offload,
          "Share of the weights of blocks, 0 to 1, that lies in the host's memory and comes "
          "over the link just before it is used")
      ->check(real(0.0, 1.0));
  command.add_flag("--exchange-experts", arguments.exchange_experts,
                   "Of Wan 2.2's two experts have one on the GPU, and the other in the host's "
                   "memory until the noise level is its own");
  command.add_option(
      "--vram-budget", arguments.vram_budget,
      "What drawing may take of a GPU, such as 6GiB, or auto = what is free: chooses "
      "--exchange-experts and --offload, and bounds the text encoder and the autoencoder");
  command.add_option("--threads", arguments.threads, "CPU threads; 0 = as many as cores")
      ->check(whole(0));
  command.add_flag("--deterministic", arguments.deterministic,
                   "Only kernels that give the same bits each time");
}

}  // namespace

void add_sample(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<SampleArguments>();
  CLI::App* command = app.add_subcommand("sample", "Draw images or clips from a trained model.");
  add_what(*command, *arguments);
  add_clip(*command, *arguments);
  add_start(*command, *arguments);
  add_how(*command, *arguments);
  add_rank_options(*command, arguments->ranks);
  add_sharing_options(*command, arguments->options.ranks);
  command->callback([arguments, command, &chosen] {
    for (const CLI::Option* option : command->get_options()) {
      if (option->count() > 0) {
        arguments->given[option->get_name()] = option->results();
      }
    }
    KINORA_CHECK(
        !arguments->like.empty() || arguments->run.empty() != arguments->checkpoint.empty(),
        kConfig, "[sample] give one of --run DIR and --checkpoint FILE_OR_DIR");
    const inference::Request& request = arguments->request;
    const int num_texts = static_cast<int>(!request.captions.empty()) +
                          static_cast<int>(!arguments->captions_file.empty()) +
                          static_cast<int>(!request.text_embeddings.empty());
    KINORA_CHECK(num_texts <= 1, kConfig,
                 "[sample] give only one of --captions, --captions-file and --text-embeddings");
    KINORA_CHECK(arguments->init.empty() || arguments->latents.empty(), kConfig,
                 "[sample] give only one of --init and --latents");
    const bool begins =
        !arguments->like.empty() || !arguments->init.empty() || !arguments->options.given.empty();
    KINORA_CHECK(arguments->mask.empty() || begins, kConfig,
                 "[sample] --mask is of --image, and there is none");
    KINORA_CHECK(!arguments->strength || begins || !arguments->latents.empty() ||
                     !arguments->upsample.empty(),
                 kConfig,
                 "[sample] --strength is of --image, --latents or --upsample, and there is none");
    for (const char* name : {"--ip-image", "--ip-scale", "--ip-encoder"}) {
      KINORA_CHECK(
          !arguments->ip_adapter.empty() || !arguments->like.empty() || command->count(name) == 0,
          kConfig, "[sample] ", name, " is of --ip-adapter, and there is none");
    }
    KINORA_CHECK(
        arguments->ip_adapter.empty() || !arguments->ip_images.empty() || !arguments->like.empty(),
        kConfig, "[sample] --ip-adapter wants a picture. Hint: --ip-image FILE");
    for (const std::string& text : arguments->at) {
      arguments->options.at.push_back(parse_placed(text));
    }
    chosen = *arguments;
  });
}

}  // namespace kinora::apps
