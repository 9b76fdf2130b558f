#include "kinora/models/transformers/joint_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kinora/models/transformers/seams.h"
#include "kinora/nn/rotary.h"
#include "kinora/nn/self_attention.h"
#include "kinora/ops/parameter.h"
#include "kinora/ops/token_attention.h"

// Shapes: B batch, C hidden, H heads, D = C / H; tokens are those of a stream that are here.

namespace kinora::models {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Of a StreamBlock: shift, scale and gate of attention, of the MLP, and of a second attention.
constexpr int64_t kSeam = 3;
constexpr int64_t kMlp = 3;
constexpr int64_t kSecond = 6;

nn::Init xavier(int64_t in_features, int64_t out_features) {
  return nn::Init::xavier_uniform(in_features, out_features);
}

/// packed [B, tokens, 3, H, D] with queries and keys turned by angles [tokens, D], if defined.
at::Tensor turned(const at::Tensor& packed, const at::Tensor& angles) {
  if (!angles.defined()) {
    return packed;
  }
  const Tensors parts = packed.unbind(2);
  const at::Tensor each = angles.unsqueeze(1);  // [tokens, 1, D]
  return at::stack({nn::rotated(parts[0], each), nn::rotated(parts[1], each), parts[2]}, 2);
}

/// What attention reads beside the streams: the image alone, or both.
struct AttendedTokens {
  std::vector<int64_t> counts;
  at::Tensor text_lengths{};
  std::shared_ptr<const ops::BlockMask> blocks;

  AttendedTokens(const JointTokens& tokens, size_t num_streams)
      : counts{tokens.image}, blocks(tokens.image_blocks) {
    if (num_streams > 1) {
      counts.push_back(tokens.text);
      text_lengths = tokens.text_lengths;
      blocks = tokens.blocks;
    }
  }
};

/// Attention of what is here of the streams, normed and turned [B, tokens, 3, H, D]. Returns [B,
/// tokens, C] of each.
Tensors attend_made(ops::BlockKernels* kernels, const Tensors& packed, const JointTokens& tokens) {
  const auto [counts, lengths, blocks] = AttendedTokens(tokens, packed.size());
  return tokens.sequence->stream_attention(kernels, packed, counts, lengths, blocks);
}

/// The same of what they are made of.
Tensors attend_unmade(ops::BlockKernels* kernels, const std::vector<nn::UnmadeStream>& streams,
                      const JointTokens& tokens) {
  const auto [counts, lengths, blocks] = AttendedTokens(tokens, streams.size());
  return tokens.sequence->unmade_attention(kernels, streams, counts, lengths, blocks);
}

/// [B, tokens, C] of each as one frame.
Tensors as_frames(Tensors parts) {
  for (at::Tensor& part : parts) {
    part = part.unsqueeze(1);
  }
  return parts;
}

/// A stream on the fast path: how its rows [B tokens, ..] become queries, keys and values.
struct StreamRows {
  at::Tensor rows;
  ops::LinearWeights qkv;  ///< without weight: the rows are what it has made
  ops::HeadRule rule;
};

/// Attention among ranks of what the fast path has, of the image or of both. Returns rows [B
/// tokens, C].
Tensors attend_rows(const std::vector<StreamRows>& streams, int64_t heads,
                    const JointTokens& tokens) {
  const std::vector<int64_t> own = {tokens.own_image, tokens.own_text};
  Tensors packed;
  std::vector<nn::UnmadeStream> unmade;
  for (size_t i = 0; i < streams.size(); ++i) {
    const auto& [rows, qkv, rule] = streams[i];
    if (!qkv.weight.defined()) {
      packed.push_back(ops::ruled_heads(*tokens.kernels, rows, heads, rule)
                           .view({-1, own[i], 3, heads, rows.size(1) / (3 * heads)}));
      continue;
    }
    unmade.push_back(
        {.x = rows.view({-1, own[i], rows.size(1)}),
         .qkv = qkv,
         .num_heads = heads,
         .ready = [kernels = tokens.kernels, rule = rule](const at::Tensor& all) {
           const at::Tensor flat = all.reshape({all.size(0) * all.size(1), -1});
           return ops::ruled_heads(*kernels, flat, all.size(3), rule).view(all.sizes());
         }});
  }
  Tensors out = unmade.empty() ? attend_made(tokens.kernels, packed, tokens)
                               : attend_unmade(tokens.kernels, unmade, tokens);
  for (at::Tensor& part : out) {
    part = part.reshape({-1, part.size(2)});
  }
  return out;
}

/// Of a linear that somebody else computes with: what it leaves, and where gradients are added.
ops::LinearWeights taken(ops::LinearWeights* linear, Tensors* gradients) {
  gradients->insert(gradients->end(), {linear->weight_grad, linear->bias_grad});
  return std::exchange(*linear, {});
}

/// The rule of tokens [first, first + count).
ops::HeadRule rule_of(ops::HeadRule rule, int64_t first, int64_t count) {
  if (rule.cosines.defined()) {
    rule.cosines = rule.cosines.narrow(0, first, count);
    rule.sines = rule.sines.narrow(0, first, count);
  }
  return rule;
}

/// Two vectors a sample, the first tokens' first: [B, 1, C] each, of [2 B, 1, 1, C].
Tensors in_two(const at::Tensor& vectors) {
  return vectors.view({-1, 2, 1, vectors.size(-1)}).unbind(1);
}

/// Vectors [V, 1, 1, C] as those of a stream's `count` tokens, `first` as JointTokens has it:
/// [B, 1, 1 or count, C].
Tensors of_tokens(Tensors vectors, int64_t first, int64_t count) {
  for (at::Tensor& vector : vectors) {
    if (first > 0) {
      const Tensors both = in_two(vector);
      vector =
          at::cat({both[0].expand({-1, first, -1}), both[1].expand({-1, count - first, -1})}, 1)
              .unsqueeze(1);
    }
  }
  return vectors;
}

/// x W^T + b, in autograd.
at::Tensor made_by(const ops::LinearWeights& linear, const at::Tensor& x) {
  return at::linear(x.to(linear.weight.scalar_type()),
                    ops::with_gradient(linear.weight, linear.weight_grad),
                    ops::with_gradient(linear.bias, linear.bias_grad));
}

int64_t num_vectors(const StreamBlock::Options& options) {
  return options.ends ? 2 : kSeam * (options.has_second_attention ? 3 : 2);
}

}  // namespace

at::Tensor ready_angles(const JointTokens& tokens, const SlidingWindow* window,
                        const at::Tensor& angles) {
  const nn::Sequence whole;
  return own_tokens(tokens.sequence->makes_streams() ? whole : *tokens.sequence, window, angles)
      .flatten(0, 2);
}

at::Tensor of_rest(const at::Tensor& vectors, int64_t first) {
  return first == 0 ? vectors : vectors.unflatten(0, {-1, 2}).select(1, 1);
}

std::vector<at::Tensor> attend_jointly(std::vector<at::Tensor> packed, const JointTokens& tokens,
                                       bool is_turned) {
  if (is_turned) {
    packed[0] = turned(packed[0], tokens.image_angles);
  }
  return as_frames(attend_made(nullptr, packed, tokens));
}

std::vector<nn::UnmadeStream> unmade_streams(
    const at::Tensor& h, const ops::LinearWeights& qkv, int64_t num_heads,
    const JointTokens& tokens, const std::function<at::Tensor(const at::Tensor&)>& normed) {
  std::vector<nn::UnmadeStream> streams;
  for (const at::Tensor& part :
       h.squeeze(1).split_with_sizes({tokens.own_image, tokens.own_text}, 1)) {
    const at::Tensor angles = streams.empty() ? tokens.image_angles : at::Tensor();
    streams.push_back({.x = part,
                       .qkv = qkv,
                       .num_heads = num_heads,
                       .ready = [normed, angles](const at::Tensor& packed) {
                         return turned(normed(packed), angles);
                       }});
  }
  return streams;
}

std::vector<at::Tensor> attend_unmade(const std::vector<nn::UnmadeStream>& streams,
                                      const JointTokens& tokens) {
  return as_frames(attend_unmade(nullptr, streams, tokens));
}

void attend_among_ranks(const JointTokens& tokens, bool has_text, ops::SelfAttentionBody* body) {
  if (!tokens.sequence->divides_tokens()) {
    return;
  }
  const ops::LinearWeights qkv =
      tokens.sequence->makes_streams() ? taken(&body->qkv, &body->gradients) : ops::LinearWeights();
  if (!has_text) {
    body->attend = [tokens, qkv, heads = body->heads, rule = body->rule](const at::Tensor& rows) {
      return attend_rows({{rows, qkv, rule}}, heads, tokens)[0];
    };
    return;
  }
  body->attend = [tokens, qkv, heads = body->heads, rule = body->rule](const at::Tensor& rows) {
    const int64_t width = rows.size(1);
    const Tensors parts = rows.view({-1, tokens.own_image + tokens.own_text, width})
                              .split_with_sizes({tokens.own_image, tokens.own_text}, 1);
    const auto stream = [&](size_t i, int64_t first, int64_t count) {
      return StreamRows{parts[i].reshape({-1, width}), qkv, rule_of(rule, first, count)};
    };
    const Tensors out = attend_rows(
        {stream(0, 0, tokens.ready_image()), stream(1, tokens.ready_image(), tokens.ready_text())},
        heads, tokens);
    const int64_t hidden = out[0].size(1);
    return at::cat({out[0].view({-1, tokens.own_image, hidden}),
                    out[1].view({-1, tokens.own_text, hidden})},
                   1)
        .view({-1, hidden});
  };
}

FastJoint::FastJoint(const JointTokens& tokens, diffusion::StepCache* cache)
    : tokens(tokens), cache(cache), keys{.blocks = tokens.blocks} {
  if (tokens.image_angles.defined()) {
    rotation = nn::head_rule(
        {}, {}, at::constant_pad_nd(tokens.image_angles, {0, 0, 0, tokens.ready_text()}));
  }
  if (tokens.text_lengths.defined() && !tokens.sequence->divides_tokens()) {
    keys.lengths = (tokens.text_lengths + tokens.image).to(at::kInt);
  }
}

HeadNorms::HeadNorms(const TransformerConfig& config) {
  if (config.qk_norm == ops::Switch::kOn) {
    q_norm.emplace(config.hidden / config.heads);
    k_norm.emplace(config.hidden / config.heads);
    q_norm->weight.is_partial = true;
    k_norm->weight.is_partial = true;
    add_child("q_norm", *q_norm);
    add_child("k_norm", *k_norm);
  }
}

at::Tensor HeadNorms::forward(const at::Tensor& packed) const {
  if (!q_norm) {
    return packed;
  }
  const Tensors parts = packed.unbind(2);
  return at::stack({q_norm->forward(parts[0]), k_norm->forward(parts[1]), parts[2]}, 2);
}

ops::HeadRule HeadNorms::rule(const FastJoint& joint, int64_t stream) const {
  ops::HeadRule rule = nn::head_rule(q_norm, k_norm, {});
  if (stream == 0 && joint.rotation.cosines.defined()) {
    rule.cosines = joint.rotation.cosines.narrow(0, 0, joint.tokens.ready_image());
    rule.sines = joint.rotation.sines.narrow(0, 0, joint.tokens.ready_image());
  }
  return rule;
}

ops::HeadRule HeadNorms::rule(const FastJoint& joint) const {
  ops::HeadRule rule = nn::head_rule(q_norm, k_norm, {});
  rule.cosines = joint.rotation.cosines;
  rule.sines = joint.rotation.sines;
  return rule;
}

StreamAttention::StreamAttention(const TransformerConfig& config, bool ends)
    : head_size_(config.hidden / config.heads),
      qkv(config.hidden, 3 * config.hidden, xavier(config.hidden, 3 * config.hidden)),
      norms_(config) {
  const nn::Stretch heads{config.hidden, config.heads};
  qkv.set_cut({nn::Cut::Dim::kOutputs, {heads, heads, heads}});
  add_child("qkv", qkv);
  add_child("", norms_);
  if (!ends) {
    proj.emplace(config.hidden, config.hidden, xavier(config.hidden, config.hidden));
    proj->set_cut({nn::Cut::Dim::kInputs, {heads}});
    add_child("proj", *proj);
  }
}

at::Tensor StreamAttention::project(const at::Tensor& x) const {
  return norms_.forward(qkv.forward(x).squeeze(1).unflatten(-1, {3, -1, head_size_}));
}

nn::UnmadeStream StreamAttention::unmade(const at::Tensor& x, const at::Tensor& angles) const {
  return {.x = x.squeeze(1),
          .qkv = qkv.weights(),
          .num_heads = num_heads(),
          .ready = [this, angles](const at::Tensor& packed) {
            return turned(norms_.forward(packed), angles);
          }};
}

at::Tensor StreamAttention::finish(const at::Tensor& attended) const {
  return tapped(proj->forward(attended));
}

ops::JointAttentionBody::Part StreamAttention::part(const FastJoint& joint, int64_t stream) const {
  return {qkv.weights(), proj ? proj->weights() : ops::LinearWeights(), norms_.rule(joint, stream)};
}

ops::SelfAttentionBody StreamAttention::body(const FastJoint& joint) const {
  ops::SelfAttentionBody body{.qkv = qkv.weights(),
                              .proj = proj->weights(),
                              .heads = num_heads(),
                              .length = joint.tokens.own_image,
                              .rule = norms_.rule({}, 0),
                              .keys = {.blocks = joint.tokens.image_blocks}};
  attend_among_ranks(joint.tokens, /*has_text=*/false, &body);
  return body;
}

std::vector<nn::Linear*> StreamAttention::linears() {
  return proj ? std::vector<nn::Linear*>{&qkv, &*proj} : std::vector<nn::Linear*>{&qkv};
}

StreamBlock::StreamBlock(const TransformerConfig& config, const Options& options)
    : adaLN_modulation(config.hidden, num_vectors(options), false), attn(config, options.ends) {
  add_child("adaLN_modulation", adaLN_modulation);
  add_child("attn", attn);
  if (options.has_second_attention) {
    add_child("attn2", attn2.emplace(config, false));
  }
  if (!options.ends) {
    add_child("mlp", mlp.emplace(config.hidden, config.mlp_hidden(), config.hidden));
  }
}

Tensors StreamBlock::modulation(const at::Tensor& condition) const {
  return adaLN_modulation.forward(condition);
}

at::Tensor StreamBlock::first_norm(const at::Tensor& x, const Tensors& m) {
  return modulated_norm(x, m[0], m[1]);
}

at::Tensor StreamBlock::project(const at::Tensor& x, const Tensors& m) const {
  return attn.project(first_norm(x, m));
}

nn::UnmadeStream StreamBlock::unmade(const at::Tensor& x, const Tensors& m,
                                     const at::Tensor& angles) const {
  return attn.unmade(first_norm(x, m), angles);
}

at::Tensor StreamBlock::finish(const at::Tensor& x, const Tensors& m, const at::Tensor& added,
                               const JointTokens& tokens) const {
  at::Tensor y = gated_sum(x, m[2], added);
  if (attn2) {
    const Tensors second = tokens.sequence->branch(ops::BranchKind::kSpace, [&] {
      const at::Tensor h = modulated_norm(x, m[kSecond], m[kSecond + 1]);
      const Tensors attended =
          tokens.sequence->makes_streams()
              ? attend_unmade({attn2->unmade(h, /*angles=*/{})}, tokens)
              : attend_jointly({attn2->project(h)}, tokens, /*is_turned=*/false);
      return Tensors{attn2->finish(attended[0])};
    });
    y = gated_sum(y, m[kSecond + 2], second[0]);
  }
  const Tensors hidden = tokens.sequence->branch(ops::BranchKind::kMlp, [&] {
    return Tensors{mlp->forward(modulated_norm(y, m[kMlp], m[kMlp + 1]))};
  });
  return tapped(gated_sum(y, m[kMlp + 2], hidden[0]));
}

StreamBlock::Fast StreamBlock::fast(const FastJoint& joint, int64_t stream,
                                    int64_t first_vector) const {
  const auto seam = [first_vector](int64_t first) {
    const int64_t shift = first_vector + first;
    return ops::SeamNumbers{.shift = shift, .scale = shift + 1, .gate = shift + 2};
  };
  Fast fast{.attention = attn.part(joint, stream), .seam = seam(0), .num_vectors = 2};
  if (ends()) {
    fast.seam.gate = -1;
    return fast;
  }
  fast.mlp = ops::Branch{.body = mlp->body(),
                         .seam = seam(kMlp),
                         .stream = stream,
                         .kept = joint.kept(ops::BranchKind::kMlp)};
  fast.num_vectors = 2 * kSeam;
  if (attn2) {
    fast.beside = ops::Branch{.body = attn2->body(joint),
                              .seam = seam(kSecond),
                              .stream = stream,
                              .is_beside = true,
                              .kept = joint.kept(ops::BranchKind::kSpace)};
    fast.num_vectors += kSeam;
  }
  return fast;
}

std::vector<nn::Linear*> StreamBlock::linears() {
  std::vector<nn::Linear*> all = attn.linears();
  if (attn2) {
    const std::vector<nn::Linear*> second = attn2->linears();
    all.insert(all.end(), second.begin(), second.end());
  }
  if (mlp) {
    all.insert(all.end(), {&mlp->fc1, &mlp->fc2});
  }
  return all;
}

JointBlock::JointBlock(const TransformerConfig& config, int64_t number)
    : context_block(config, {.ends = number + 1 == config.depth && config.parallel_depth == 0}),
      x_block(config,
              {.has_second_attention = std::ranges::count(config.second_attention, number) > 0}) {
  add_child("context_block", context_block);
  add_child("x_block", x_block);
}

Tensors JointBlock::forward(const Tensors& streams, const JointInputs& inputs) const {
  const at::Tensor& image = streams[0];
  const at::Tensor& text = streams[1];
  const int64_t first = inputs.tokens.first;
  const Tensors m_image = of_tokens(x_block.modulation(inputs.condition), first, image.size(2));
  const Tensors m_text = context_block.modulation(of_rest(inputs.condition, first));
  const Tensors added = inputs.tokens.sequence->branch(ops::BranchKind::kSpace, [&] {
    const JointTokens& tokens = inputs.tokens;
    const Tensors attended =
        tokens.sequence->makes_streams()
            ? attend_unmade({x_block.unmade(image, m_image, tokens.image_angles),
                             context_block.unmade(text, m_text, /*angles=*/{})},
                            tokens)
            : attend_jointly({x_block.project(image, m_image), context_block.project(text, m_text)},
                             tokens);
    return context_block.ends()
               ? Tensors{x_block.result(attended[0])}
               : Tensors{x_block.result(attended[0]), context_block.result(attended[1])};
  });
  const at::Tensor x = x_block.finish(image, m_image, added[0], inputs.tokens);
  return context_block.ends()
             ? Tensors{x}
             : Tensors{x, context_block.finish(text, m_text, added[1], inputs.tokens)};
}

at::Tensor JointBlock::first_norm(const at::Tensor& image, const JointInputs& inputs) const {
  return StreamBlock::first_norm(
      image, of_tokens(x_block.modulation(inputs.condition), inputs.tokens.first, image.size(2)));
}

ops::Block JointBlock::fast(const FastJoint& joint) const {
  const StreamBlock::Fast image = x_block.fast(joint, 0, 0);
  const StreamBlock::Fast text = context_block.fast(joint, 1, image.num_vectors);
  ops::Block block{.branches = {}, .num_vectors = image.num_vectors + text.num_vectors};
  if (image.beside) {
    block.branches.push_back(*image.beside);
  }
  ops::JointAttentionBody attention{
      .parts = {image.attention, text.attention}, .heads = x_block.num_heads(), .keys = joint.keys};
  if (joint.tokens.sequence->divides_tokens()) {
    std::array<StreamRows, 2> rows;
    for (size_t i = 0; i < rows.size(); ++i) {
      ops::JointAttentionBody::Part& part = attention.parts[i];
      rows[i].rule = part.rule;
      if (joint.tokens.sequence->makes_streams()) {
        rows[i].qkv = taken(&part.qkv, &attention.gradients);
      }
    }
    attention.attend = [tokens = joint.tokens, heads = attention.heads,
                        rows](const std::array<at::Tensor, 2>& packed) {
      std::array<StreamRows, 2> streams = rows;
      streams[0].rows = packed[0];
      streams[1].rows = packed[1];
      const Tensors out = attend_rows({streams[0], streams[1]}, heads, tokens);
      return std::array{out[0], out[1]};
    };
  }
  block.branches.push_back({.body = std::move(attention),
                            .seam = image.seam,
                            .second_seam = text.seam,
                            .kept = joint.kept(ops::BranchKind::kSpace)});
  block.branches.push_back(*image.mlp);
  if (text.mlp) {
    block.branches.push_back(*text.mlp);
  }
  return block;
}

std::vector<ops::LinearWeights> JointBlock::modulation() const {
  return {x_block.slab(), context_block.slab()};
}

std::vector<nn::Linear*> JointBlock::linears() {
  std::vector<nn::Linear*> all = x_block.linears();
  const std::vector<nn::Linear*> text = context_block.linears();
  all.insert(all.end(), text.begin(), text.end());
  return all;
}

ParallelBlock::ParallelBlock(const TransformerConfig& config)
    : head_size_(config.hidden / config.heads),
      modulation(config.hidden, kSeam, false),
      linear1(config.hidden, 3 * config.hidden + config.mlp_hidden(),
              xavier(config.hidden, 3 * config.hidden + config.mlp_hidden())),
      linear2(config.hidden + config.mlp_hidden(), config.hidden,
              xavier(config.hidden + config.mlp_hidden(), config.hidden)),
      norms_(config) {
  linear1.set_parts(nn::Cut::Dim::kOutputs, {3 * config.hidden, config.mlp_hidden()});
  linear2.set_parts(nn::Cut::Dim::kInputs, {config.hidden, config.mlp_hidden()});
  const nn::Stretch heads{config.hidden, config.heads};
  const nn::Stretch columns{config.mlp_hidden(), config.mlp_hidden()};
  linear1.set_cut({nn::Cut::Dim::kOutputs, {heads, heads, heads, columns}});
  linear2.set_cut({nn::Cut::Dim::kInputs, {heads, columns}});
  add_child("modulation", modulation);
  add_child("linear1", linear1);
  add_child("linear2", linear2);
  add_child("", norms_);
}

at::Tensor ParallelBlock::forward(const at::Tensor& x, const JointInputs& inputs) const {
  const JointTokens& tokens = inputs.tokens;
  const Tensors m = of_tokens(modulation.forward(inputs.condition), tokens.first, x.size(2));
  const int64_t hidden = x.size(-1) / linear1.group().size();
  const at::Tensor h = modulated_norm(x, m[0], m[1]);
  const bool makes_streams = tokens.sequence->makes_streams();
  const at::Tensor both = makes_streams ? at::Tensor() : linear1.forward(h);
  const at::Tensor hidden_pre = makes_streams
                                    ? made_by(linear1.parts()[1], h)
                                    : both.narrow(-1, 3 * hidden, both.size(-1) - 3 * hidden);
  const at::Tensor mlp = at::gelu(hidden_pre, "tanh");
  const Tensors attended = tokens.sequence->branch(ops::BranchKind::kSpace, [&] {
    return Tensors{at::cat(
        makes_streams
            ? attend_unmade(
                  unmade_streams(h, linear1.parts()[0], hidden / head_size_, tokens,
                                 [this](const at::Tensor& all) { return norms_.forward(all); }),
                  tokens)
            : attend_jointly(split(both.narrow(-1, 0, 3 * hidden), tokens), tokens),
        2)};
  });
  return tapped(gated_sum(x, m[2], linear2.forward(at::cat({attended[0], mlp}, -1))));
}

std::vector<at::Tensor> ParallelBlock::split(const at::Tensor& packed,
                                             const JointTokens& tokens) const {
  return norms_.forward(packed.squeeze(1).unflatten(-1, {3, -1, head_size_}))
      .split_with_sizes({tokens.own_image, tokens.own_text}, 1);
}

ops::Block ParallelBlock::fast(const FastJoint& joint) const {
  const JointTokens& tokens = joint.tokens;
  const std::vector<ops::LinearWeights> first = linear1.parts();
  const std::vector<ops::LinearWeights> second = linear2.parts();
  const int64_t num_heads = first[0].weight.size(0) / (3 * head_size_);
  ops::ParallelBody body{.attention = {.qkv = first[0],
                                       .proj = second[0],
                                       .heads = num_heads,
                                       .length = tokens.own_image + tokens.own_text,
                                       .rule = norms_.rule(joint),
                                       .keys = joint.keys},
                         .mlp = {.fc1 = first[1], .fc2 = second[1]}};
  attend_among_ranks(tokens, /*has_text=*/true, &body.attention);
  return {.branches = {{.body = std::move(body),
                        .seam = {.shift = 0, .scale = 1, .gate = 2},
                        .kept = joint.kept(ops::BranchKind::kSpace)}},
          .num_vectors = kSeam};
}

}  // namespace kinora::models
