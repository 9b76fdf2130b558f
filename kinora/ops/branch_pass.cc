#include "kinora/ops/branch_pass.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <type_traits>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/ops/unet_parts.h"
#include "kinora/ops/vectors.h"

namespace kinora::ops {
namespace {

// ---- linears ----

/// A product with what the linear's low-rank updates add to it: inside of the product, or as an
/// addend (undefined without).
struct Product {
  Operand operand;
  LinearWeights weights;
  at::Tensor addend{};

  explicit Product(JoinedProduct joined)
      : operand(std::move(joined.operand)),
        weights(std::move(joined.weights)),
        addend(std::move(joined.addend)) {}
  Product(Operand operand, LinearWeights weights, at::Tensor addend)
      : operand(std::move(operand)), weights(std::move(weights)), addend(std::move(addend)) {}
};

Product forward_product(const BranchPass& pass, Operand& x, const LinearWeights& weights) {
  if (weights.updates.empty()) {
    return {x, weights, {}};
  }
  if (x.room > 0) {
    return Product(pass.kernels.joined(x, weights));
  }
  const at::Tensor added = pass.kernels.update(x, weights);
  return {x, weights, added};
}

/// A of all updates, one below the other.
at::Tensor stacked_a(const LinearWeights& linear) {
  if (linear.updates.size() == 1) {
    return linear.updates.front().a;
  }
  std::vector<at::Tensor> all;
  for (const LowRankWeights& update : linear.updates) {
    all.push_back(update.a);
  }
  return at::cat(all);
}

/// The sum of what is defined; `sum` may be overwritten.
at::Tensor sum_of(const at::Tensor& sum, const at::Tensor& addend) {
  if (!sum.defined() || !addend.defined()) {
    return sum.defined() ? sum : addend;
  }
  return at::Tensor(sum).add_(addend);
}

/// x W^T (+ sum, which may be overwritten).
at::Tensor linear(const BranchPass& pass, Operand& x, const LinearWeights& weights,
                  const at::Tensor& sum = {}) {
  const Product product = forward_product(pass, x, weights);
  return pass.kernels.linear(product.operand, product.weights, sum_of(sum, product.addend));
}

/// Adds the gradients of weights that are not frozen; of the bias, too, where `values`, dy as it
/// was before it became an operand, are given.
void add_gradients(const BranchPass& pass, const Operand& dy, const at::Tensor& values,
                   const Operand& x, const LinearWeights& weights) {
  const bool has_weight = weights.weight_grad.defined();
  const bool wants_bias = values.defined() && weights.bias_grad.defined();
  if (has_weight && wants_bias) {
    pass.kernels.weight_and_bias_grad(dy, values, x, weights, pass.overwrites_gradients);
  } else if (has_weight) {
    pass.kernels.weight_grad(dy, x, weights, pass.overwrites_gradients);
  } else if (wants_bias) {
    pass.kernels.add_column_sums(values, weights.bias_grad);
  }
}

/// The product that gives the gradient of x. Adds the gradients of the updates, or has them wait.
Product backward_product(BranchPass& pass, const Operand& dy, Operand& x,
                         const LinearWeights& weights) {
  if (weights.updates.empty()) {
    return {dy, weights, {}};
  }
  if (dy.room > 0 && x.room > 0 && weights.updates.front().b_grad.defined()) {
    return Product(pass.kernels.joined_grad(dy, x, weights, pass.update_gradients));
  }
  return {dy, weights, pass.kernels.update_grad(dy, x, weights, pass.update_gradients)};
}

/// dy W (+ sum, which may be overwritten).
at::Tensor input_grad(BranchPass& pass, const Operand& dy, Operand& x, const LinearWeights& weights,
                      bool is_wanted = true, const at::Tensor& sum = {}) {
  const Product product = backward_product(pass, dy, x, weights);
  return is_wanted ? pass.kernels.input_grad(product.operand, product.weights,
                                             sum_of(sum, product.addend))
                   : at::Tensor();
}

/// Of a linear between other parts: the gradients of its weights, and that of x. room: what dy has.
at::Tensor linear_backward(BranchPass& pass, const at::Tensor& dy, int64_t room, Operand& x,
                           const LinearWeights& weights, bool is_wanted = true) {
  ResultGrad grad = pass.kernels.result_grad(dy, pass.number(&weights), weights.bias_grad);
  grad.operand.room = room;
  add_gradients(pass, grad.operand, grad.values, x, weights);
  return input_grad(pass, grad.operand, x, weights, is_wanted);
}

/// Of the linear that makes a branch's result: the gradients of its weights, and that of its input,
/// which is dropped.
at::Tensor last_backward(BranchPass& pass, const ResultGrad& dresult, KeptBranch& kept,
                         const LinearWeights& weights) {
  add_gradients(pass, dresult.operand, dresult.values, kept.last, weights);
  const at::Tensor dlast = input_grad(pass, dresult.operand, kept.last, weights);
  kept.last = {};
  return dlast;
}

/// Rows of the same shape, with room behind each.
at::Tensor empty_like(const BranchPass& pass, const at::Tensor& rows, int64_t room) {
  return room > 0 ? pass.kernels.empty_with_room(rows.size(0), rows.size(1), room)
                  : at::empty_like(rows);
}

// ---- self-attention ----

/// [R, 3 C] or [R, C] as token_attention.h has tokens.
at::Tensor tokens_of(const SelfAttentionBody& body, const at::Tensor& rows) {
  return rows.view({-1, body.length, body.stride, rows.size(1)});
}

at::Tensor rows_of(const at::Tensor& tokens) {
  return tokens.view({-1, tokens.size(-1)});
}

/// What attention has made, [R, C], as the input of proj, behind whose rows there is room.
Operand attended_operand(const BranchPass& pass, const at::Tensor& rows, int64_t room,
                         const LinearWeights& proj) {
  Operand operand = pass.kernels.operand(rows, pass.number(&proj), false);
  operand.room = room;
  return operand;
}

/// Tokens [.., C] as rows [R, C] with that room behind each.
at::Tensor with_room(const BranchPass& pass, const at::Tensor& tokens, int64_t room) {
  const int64_t width = tokens.size(-1);
  if (room == 0 && tokens.is_contiguous()) {
    return tokens.view({-1, width});
  }
  const int64_t count = tokens.numel() / width;
  const at::Tensor rows = room > 0 ? pass.kernels.empty_with_room(count, width, room)
                                   : at::empty({count, width}, tokens.options());
  copy_in_vectors(tokens, rows.view(tokens.sizes()));
  return rows;
}

/// Tokens [.., C] without room as the input of a linear.
Operand input_of(const BranchPass& pass, const at::Tensor& tokens, const LinearWeights& linear) {
  const int64_t room = pass.kernels.room(linear);
  return attended_operand(pass, with_room(pass, tokens, room), room, linear);
}

/// A leaf of a graph that has what `packed` has.
at::Tensor leaf_of(const at::Tensor& packed) {
  return packed.detach().set_requires_grad(true);
}

/// What attention reads: queries, keys and values, or where something else makes them, what they
/// are made of.
at::Tensor packed_of(const BranchPass& pass, Operand& h, const LinearWeights& qkv) {
  return qkv.weight.defined() ? linear(pass, h, qkv) : h.value;
}

/// The gradient of h, of that of what attention by something else reads.
at::Tensor packed_backward(BranchPass& pass, const at::Tensor& dpacked, Operand& h,
                           const LinearWeights& qkv) {
  if (!qkv.weight.defined()) {
    return pass.wants_dh ? dpacked : at::Tensor();
  }
  const int64_t room = pass.kernels.room(qkv);
  return linear_backward(pass, with_room(pass, dpacked, room), room, h, qkv, pass.wants_dh);
}

/// room: behind the rows of what attention has made, that of proj's updates if not said.
void inner(const BranchPass& pass, const SelfAttentionBody& body, KeptBranch& kept,
           std::optional<int64_t> given_room = {}) {
  kept.packed = packed_of(pass, kept.h, body.qkv);
  if (body.attend) {
    at::Tensor out;
    if (pass.keeps) {
      const at::AutoGradMode with_gradients(true);
      kept.leaf = leaf_of(std::exchange(kept.packed, at::Tensor()));
      kept.graph = body.attend(kept.leaf);
      out = kept.graph.detach();
    } else {
      out = body.attend(kept.packed);
    }
    kept.last = input_of(pass, out, body.proj);
    return;
  }
  const int64_t room = given_room.value_or(pass.kernels.room(body.proj));
  kept.attended = attend_tokens(pass.kernels, tokens_of(body, kept.packed), body.heads, body.rule,
                                pass.keeps, room, body.keys);
  kept.last = attended_operand(pass, rows_of(kept.attended.out), room, body.proj);
}

at::Tensor backward(BranchPass& pass, const SelfAttentionBody& body, ResultGrad dresult,
                    KeptBranch& kept) {
  const at::Tensor dout = last_backward(pass, dresult, kept, body.proj);
  dresult = {};
  if (body.attend) {
    torch::autograd::backward({std::exchange(kept.graph, at::Tensor())}, {dout});
    return packed_backward(pass, std::exchange(kept.leaf, at::Tensor()).grad(), kept.h, body.qkv);
  }
  const int64_t room = pass.kernels.room(body.qkv);
  const at::Tensor dpacked = rows_of(
      attend_tokens_backward(pass.kernels, tokens_of(body, dout), tokens_of(body, kept.packed),
                             kept.attended, body.heads, body.rule, room, body.keys));
  kept.packed = at::Tensor();
  kept.attended = {};
  return linear_backward(pass, dpacked, room, kept.h, body.qkv, pass.wants_dh);
}

// ---- attention of two streams ----

/// The tokens of a sample in each stream, and where they lie among those of both.
struct JointTokens {
  std::array<int64_t, 2> count{};
  int64_t batch;

  JointTokens(const BranchPass& pass, const std::array<KeptBranch*, 2>& kept) : batch(pass.batch) {
    for (size_t i = 0; i < kept.size(); ++i) {
      count[i] = kept[i]->packed.size(0) / batch;
    }
  }
  [[nodiscard]] int64_t all() const { return count[0] + count[1]; }
  /// Those of one stream, of all [B, T, ..]: a view.
  [[nodiscard]] at::Tensor part(const at::Tensor& tokens, size_t stream) const {
    return tokens.narrow(1, stream == 0 ? 0 : count[0], count[stream]);
  }
};

/// Queries, keys and values [B, T, 3 C] of all tokens as attention reads them.
at::Tensor place_all(const BranchPass& pass, const JointAttentionBody& body,
                     const std::array<KeptBranch*, 2>& kept) {
  const JointTokens tokens(pass, kept);
  const at::Tensor& packed = kept[0]->packed;
  at::Tensor ready = at::empty({tokens.batch, tokens.all(), packed.size(1)}, packed.options());
  for (size_t i = 0; i < kept.size(); ++i) {
    pass.kernels.place_heads(body.parts[i].rule, kept[i]->packed, body.heads,
                             tokens.part(ready, i));
  }
  return ready;
}

/// Of [B, T, 3 C].
HeadTensors joint_heads(const JointAttentionBody& body, const at::Tensor& tokens,
                        const AttendedKeys& keys) {
  const at::Tensor parts = tokens.unflatten(2, {3, body.heads, -1});
  return {parts.select(2, 0), parts.select(2, 1), parts.select(2, 2), keys};
}

/// JointAttentionBody::attend, and what proj reads of it.
void attend_elsewhere(const BranchPass& pass, const JointAttentionBody& body,
                      const std::array<KeptBranch*, 2>& kept) {
  std::array<at::Tensor, 2> out;
  if (pass.keeps) {
    const at::AutoGradMode with_gradients(true);
    for (KeptBranch* part : kept) {
      part->leaf = leaf_of(std::exchange(part->packed, at::Tensor()));
    }
    out = body.attend({kept[0]->leaf, kept[1]->leaf});
    for (size_t i = 0; i < kept.size(); ++i) {
      kept[i]->graph = out[i];
      out[i] = out[i].detach();
    }
  } else {
    out = body.attend({kept[0]->packed, kept[1]->packed});
  }
  for (size_t i = 0; i < kept.size(); ++i) {
    if (body.parts[i].proj.weight.defined()) {
      kept[i]->last = input_of(pass, out[i], body.parts[i].proj);
    }
  }
}

/// Its backward: the gradients of what qkv has made.
std::array<at::Tensor, 2> attend_elsewhere_backward(const std::array<at::Tensor, 2>& dout,
                                                    const std::array<KeptBranch*, 2>& kept) {
  std::vector<at::Tensor> graphs;
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < kept.size(); ++i) {
    at::Tensor graph = std::exchange(kept[i]->graph, at::Tensor());
    if (dout[i].defined()) {
      graphs.push_back(std::move(graph));
      gradients.push_back(dout[i]);
    }
  }
  torch::autograd::backward(graphs, gradients);
  return {std::exchange(kept[0]->leaf, at::Tensor()).grad(),
          std::exchange(kept[1]->leaf, at::Tensor()).grad()};
}

void inner(const BranchPass& pass, const JointAttentionBody& body,
           const std::array<KeptBranch*, 2>& kept) {
  for (size_t i = 0; i < kept.size(); ++i) {
    kept[i]->packed = packed_of(pass, kept[i]->h, body.parts[i].qkv);
  }
  if (body.attend) {
    attend_elsewhere(pass, body, kept);
    return;
  }
  const at::Tensor ready = place_all(pass, body, kept);
  const HeadTensors heads = joint_heads(body, ready, body.keys);
  AttendedTokens& attended = kept[0]->attended;
  attended = {
      ready, at::empty({ready.size(0), ready.size(1), ready.size(2) / 3}, ready.options()), {}};
  if (pass.keeps) {
    attended.lse =
        at::empty({ready.size(0), body.heads, ready.size(1)}, ready.options().dtype(at::kFloat));
  }
  if (!pass.kernels.attend(heads, attended.out.view(heads.q.sizes()), attended.lse)) {
    attended.lse = at::Tensor();
  }
  const JointTokens tokens(pass, kept);
  for (size_t i = 0; i < kept.size(); ++i) {
    const LinearWeights& proj = body.parts[i].proj;
    if (!proj.weight.defined()) {
      continue;
    }
    kept[i]->last = input_of(pass, tokens.part(attended.out, i), proj);
  }
}

/// The gradients of what qkv has made, from those of what attention has made (undefined: zero).
std::array<at::Tensor, 2> attend_backward(const BranchPass& pass, const JointAttentionBody& body,
                                          const std::array<at::Tensor, 2>& dout,
                                          const std::array<KeptBranch*, 2>& kept) {
  const JointTokens tokens(pass, kept);
  AttendedTokens attended = std::exchange(kept[0]->attended, {});
  const at::Tensor dall = at::empty_like(attended.out);
  for (size_t i = 0; i < kept.size(); ++i) {
    at::Tensor part = tokens.part(dall, i);
    if (dout[i].defined()) {
      copy_in_vectors(dout[i].view(part.sizes()), part);
    } else {
      part.zero_();
    }
  }
  if (!attended.ready.defined()) {
    attended.ready = place_all(pass, body, kept);
  }
  const HeadTensors heads = joint_heads(body, attended.ready, body.keys);
  const at::Tensor dready =
      body.keys.lengths.defined() ? at::zeros_like(attended.ready) : at::empty_like(attended.ready);
  pass.kernels.attend_backward(dall.view(heads.q.sizes()), heads,
                               attended.out.view(heads.q.sizes()), attended.lse,
                               joint_heads(body, dready, {}));
  std::array<at::Tensor, 2> dpacked;
  for (size_t i = 0; i < kept.size(); ++i) {
    const JointAttentionBody::Part& part = body.parts[i];
    const at::Tensor packed = std::exchange(kept[i]->packed, at::Tensor());
    dpacked[i] = empty_like(pass, packed, pass.kernels.room(part.qkv));
    pass.kernels.place_heads_backward(part.rule, packed, body.heads, tokens.part(dready, i),
                                      dpacked[i]);
  }
  return dpacked;
}

/// What forget_attended() dropped.
void remember_attended(const BranchPass& pass, const std::array<KeptBranch*, 2>& kept) {
  const JointTokens tokens(pass, kept);
  const at::Tensor& rows = kept[0]->last.value;
  at::Tensor& out = kept[0]->attended.out;
  out = at::empty({tokens.batch, tokens.all(), rows.size(1)}, rows.options());
  for (size_t i = 0; i < kept.size(); ++i) {
    const at::Tensor part = tokens.part(out, i);
    copy_in_vectors(kept[i]->last.value.view(part.sizes()), part);
  }
}

std::array<at::Tensor, 2> backward(BranchPass& pass, const JointAttentionBody& body,
                                   std::array<ResultGrad, 2> dresults,
                                   const std::array<KeptBranch*, 2>& kept) {
  if (!body.attend && !kept[0]->attended.out.defined()) {
    remember_attended(pass, kept);
  }
  std::array<at::Tensor, 2> dout;
  for (size_t i = 0; i < kept.size(); ++i) {
    if (const LinearWeights& proj = body.parts[i].proj; proj.weight.defined()) {
      dout[i] = last_backward(pass, dresults[i], *kept[i], proj);
    }
    dresults[i] = {};
  }
  std::array<at::Tensor, 2> dpacked =
      body.attend ? attend_elsewhere_backward(dout, kept) : attend_backward(pass, body, dout, kept);
  dout = {};
  std::array<at::Tensor, 2> dh;
  for (size_t i = 0; i < kept.size(); ++i) {
    const LinearWeights& qkv = body.parts[i].qkv;
    const at::Tensor own = std::exchange(dpacked[i], at::Tensor());
    dh[i] = body.attend ? packed_backward(pass, own, kept[i]->h, qkv)
                        : linear_backward(pass, own, pass.kernels.room(qkv), kept[i]->h, qkv,
                                          pass.wants_dh);
    kept[i]->h = {};
  }
  return dh;
}

// ---- cross-attention ----

/// Some tokens of the text, what makes keys and values of them, and what is kept of them.
struct TextPart {
  int64_t begin;
  int64_t count;
  const LinearWeights& kv;
  const at::Tensor& k_weight;
  const at::Tensor& k_weight_grad;
  const at::Tensor& lengths;
  KeptText& kept;

  /// Of what belongs to all tokens, [B L, ..]: a view.
  [[nodiscard]] at::Tensor of_all(const at::Tensor& rows, int64_t batch) const {
    return rows.view({batch, -1, rows.size(-1)}).narrow(1, begin, count);
  }
};

/// Those of `first` behind the others.
std::vector<TextPart> text_parts(const BranchPass& pass, const CrossAttentionBody& body,
                                 KeptBranch& kept) {
  static const at::Tensor kAll;
  const int64_t first = body.first.count;
  const int64_t all = pass.text.defined() ? pass.text.size(1) : 0;
  std::vector<TextPart> parts = {{first, all - first, body.kv, body.rule.k_weight,
                                  body.rule.k_weight_grad, pass.text_lengths, kept.text}};
  if (first > 0) {
    parts.push_back({0, first, body.first.kv, body.first.k_weight, body.first.k_weight_grad, kAll,
                     kept.first_text});
  }
  return parts;
}

/// `rows` behind the norm with that weight (undefined: none).
at::Tensor behind_norm(const BranchPass& pass, const CrossAttentionBody& body,
                       const at::Tensor& rows, const at::Tensor& weight) {
  if (!weight.defined()) {
    return rows;
  }
  at::Tensor normed = at::empty(rows.sizes(), rows.options());
  pass.kernels.norm_rows(body.rule, rows, weight, normed);
  return normed;
}

/// Queries [R, C] and packed keys and values [B L, 2 C], or their gradients. keys: [B L, C], in the
/// place of those that are packed; undefined: these.
HeadTensors heads_of(const BranchPass& pass, const CrossAttentionBody& body, const at::Tensor& q,
                     const at::Tensor& kv, const at::Tensor& keys, const at::Tensor& lengths) {
  const int64_t head_dim = q.size(1) / body.heads;
  const at::Tensor pairs = kv.view({pass.batch, -1, 2, body.heads, head_dim});
  return {q.view({pass.batch, -1, body.heads, head_dim}),
          keys.defined() ? keys.view({pass.batch, -1, body.heads, head_dim}) : pairs.select(2, 0),
          pairs.select(2, 1),
          {.lengths = lengths}};
}

void inner(const BranchPass& pass, const CrossAttentionBody& body, KeptBranch& kept) {
  kept.packed = linear(pass, kept.h, body.q);
  if (body.text_packed.defined()) {
    kept.text.packed = body.text_packed;
  } else {
    pack_text(pass, body, kept);
  }
  const at::Tensor q = behind_norm(pass, body, kept.packed, body.rule.q_weight);
  if (body.rule.has_norm()) {
    kept.attended.ready = q;
  }
  const int64_t room = pass.kernels.room(body.proj);
  at::Tensor sum;
  for (const TextPart& part : text_parts(pass, body, kept)) {
    if (part.k_weight.defined()) {
      const at::Tensor& packed = part.kept.packed;
      part.kept.keys =
          behind_norm(pass, body, packed.narrow(1, 0, packed.size(1) / 2), part.k_weight);
    }
    const HeadTensors heads =
        heads_of(pass, body, q, part.kept.packed, part.kept.keys, part.lengths);
    part.kept.out = empty_like(pass, kept.packed, sum.defined() ? 0 : room);
    if (pass.keeps) {
      part.kept.lse = at::empty({heads.q.size(0), body.heads, heads.q.size(1)},
                                kept.packed.options().dtype(at::kFloat));
    }
    if (!pass.kernels.attend(heads, part.kept.out.view(heads.q.sizes()), part.kept.lse)) {
      part.kept.lse = at::Tensor();
    }
    // What each part has made is read by its own backward.
    sum =
        sum.defined() ? empty_like(pass, sum, room).copy_(sum).add_(part.kept.out) : part.kept.out;
  }
  if (body.beside_packed.defined()) {
    KINORA_CHECK(!pass.keeps, kInternal,
                 "[block_stack] keys beside the text's are for passes without gradients");
    const HeadTensors beside = heads_of(pass, body, kept.packed, body.beside_packed, {}, {});
    const at::Tensor attended = at::empty_like(kept.packed);
    (void)pass.kernels.attend(beside, attended.view(beside.q.sizes()), {});
    sum.add_(attended, body.beside_scale);
  }
  kept.last = pass.kernels.operand(sum, pass.number(&body.proj), false);
  kept.last.room = room;
}

/// The gradient of what a part's kv has made of it; adds to those of its norm and of the text.
/// dkv: [B L, 2 C] of the part.
void text_backward(BranchPass& pass, const CrossAttentionBody& body, const TextPart& part,
                   const at::Tensor& dkv) {
  KeptText& kept = part.kept;
  if (part.k_weight.defined()) {
    const int64_t width = dkv.size(1) / 2;
    pass.kernels.norm_rows_backward(body.rule, kept.packed.narrow(1, 0, width), part.k_weight,
                                    dkv.narrow(1, 0, width), part.k_weight_grad);
  }
  const at::Tensor dtext =
      linear_backward(pass, dkv, 0, kept.text, part.kv, pass.text_grad.defined());
  if (pass.text_grad.defined()) {
    at::Tensor own = part.of_all(pass.text_grad, pass.batch);
    own.add_(dtext.view(own.sizes()));
  }
  kept = {};
}

at::Tensor backward(BranchPass& pass, const CrossAttentionBody& body, ResultGrad dresult,
                    KeptBranch& kept) {
  const at::Tensor dout = last_backward(pass, dresult, kept, body.proj);
  dresult = {};
  const at::Tensor q = kept.attended.ready.defined()
                           ? kept.attended.ready
                           : behind_norm(pass, body, kept.packed, body.rule.q_weight);
  const int64_t room = pass.kernels.room(body.q);
  at::Tensor dq;
  for (const TextPart& part : text_parts(pass, body, kept)) {
    const HeadTensors heads =
        heads_of(pass, body, q, part.kept.packed, part.kept.keys, part.lengths);
    const at::Tensor own = empty_like(pass, kept.packed, dq.defined() ? 0 : room);
    const at::Tensor dkv = at::zeros_like(part.kept.packed);  // padding has no gradient
    pass.kernels.attend_backward(dout.view(heads.q.sizes()), heads,
                                 part.kept.out.view(heads.q.sizes()), part.kept.lse,
                                 heads_of(pass, body, own, dkv, {}, {}));
    text_backward(pass, body, part, dkv);
    dq = dq.defined() ? dq.add_(own) : own;
  }
  kept.attended = {};
  if (body.rule.has_norm()) {
    pass.kernels.norm_rows_backward(body.rule, kept.packed, body.rule.q_weight, dq,
                                    body.rule.q_weight_grad);
  }
  kept.packed = at::Tensor();
  return linear_backward(pass, dq, room, kept.h, body.q, pass.wants_dh);
}

// ---- MLP ----

/// What fc2 reads, again from what fc1 made.
Operand activated(const BranchPass& pass, const MlpBody& body, const at::Tensor& hidden_pre) {
  return pass.kernels.gelu(hidden_pre, pass.consumer(&body.fc2));
}

/// place: where fc2's input may lie (Consumer::out).
void inner(const BranchPass& pass, const MlpBody& body, KeptBranch& kept,
           const at::Tensor& place = {}) {
  const Product fc1 = forward_product(pass, kept.h, body.fc1);
  Consumer consumer = pass.consumer(&body.fc2);
  consumer.out = place;
  BlockKernels::Gelu hidden =
      pass.kernels.linear_gelu(fc1.operand, fc1.weights, consumer, pass.keeps, fc1.addend);
  kept.hidden_pre = std::move(hidden.pre);
  kept.last = std::move(hidden.out);
}

/// sum: added to the gradient of h, and overwritten.
at::Tensor backward(BranchPass& pass, const MlpBody& body, ResultGrad dresult, KeptBranch& kept,
                    const at::Tensor& sum = {}) {
  add_gradients(pass, dresult.operand, dresult.values, kept.last, body.fc2);
  const Product fc2 = backward_product(pass, dresult.operand, kept.last, body.fc2);
  kept.last = {};
  const Operand dhidden =
      pass.kernels.gelu_input_grad(fc2.operand, fc2.weights, kept.hidden_pre, body.fc1, fc2.addend);
  kept.hidden_pre = at::Tensor();
  dresult = {};
  add_gradients(pass, dhidden, {}, kept.h, body.fc1);
  return input_grad(pass, dhidden, kept.h, body.fc1, pass.wants_dh, sum);
}

// ---- attention and MLP beside each other ----

/// Whether both make the same of their input, as parts of one linear do.
bool have_same_low(const LinearWeights& one, const LinearWeights& other) {
  return one.updates.size() == 1 && other.updates.size() == 1 &&
         one.updates.front().a.is_same(other.updates.front().a);
}

/// What qkv reads as the input of fc1: the room behind its rows is for one linear's updates at a
/// time.
Operand input_of_mlp(const BranchPass& pass, const ParallelBody& body, const Operand& h) {
  Operand own = h;
  if (!have_same_low(body.attention.qkv, body.mlp.fc1)) {
    own.low = at::Tensor();
  }
  own.room = pass.kernels.room(body.mlp.fc1) == h.room ? h.room : 0;
  return own;
}

/// [a, b] where b's columns follow a's in the rows of one matrix; else undefined.
at::Tensor side_by_side(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || !a.storage().is_alias_of(b.storage()) ||
      a.scalar_type() != b.scalar_type() || a.size(0) != b.size(0) || a.strides() != b.strides() ||
      a.stride(1) != 1 || b.storage_offset() != a.storage_offset() + a.size(1)) {
    return {};
  }
  return a.as_strided({a.size(0), a.size(1) + b.size(1)}, a.strides());
}

/// proj and fc2 as the one linear that they are part of, where they lie so; else without weight.
LinearWeights joined_last(const ParallelBody& body) {
  const LinearWeights& proj = body.attention.proj;
  const LinearWeights& fc2 = body.mlp.fc2;
  if (!proj.updates.empty() || !fc2.updates.empty() || proj.bias.defined()) {
    return {};
  }
  LinearWeights joined = fc2;
  joined.weight = side_by_side(proj.weight, fc2.weight);
  return joined;
}

/// Whether proj and fc2 may be one product.
bool joins_last(const BranchPass& pass, const ParallelBody& body, int64_t rows) {
  return !pass.keeps && !body.attention.attend &&
         pass.kernels.places_gelu(pass.number(&body.mlp.fc2), rows) &&
         pass.kernels.places_gelu(pass.number(&body.attention.proj), rows) &&
         joined_last(body).weight.defined();
}

/// The input of proj: attention's, or what was kept of it.
Operand run_attention(const BranchPass& pass, const SelfAttentionBody& body, KeptBranch& kept,
                      KeptResult* result) {
  if (result != nullptr && result->is_reused) {
    return input_of(pass, result->streams[0], body.proj);
  }
  inner(pass, body, kept);
  if (result != nullptr) {
    result->streams[0] = kept.last.value;
  }
  return std::exchange(kept.last, {});
}

void inner(const BranchPass& pass, const ParallelBody& body, KeptBranch& kept,
           KeptResult* result = nullptr) {
  at::Tensor place;
  if (result == nullptr && joins_last(pass, body, kept.h.rows())) {
    const int64_t width = body.mlp.fc2.weight.size(1);
    inner(pass, body.attention, kept, width);
    kept.attention_last = std::exchange(kept.last, {});
    kept.attention_last.room = 0;
    const at::Tensor& rows = kept.attention_last.value;
    place = rows.as_strided({rows.size(0), width}, rows.strides(),
                            rows.storage_offset() + rows.size(1));
  } else {
    kept.attention_last = run_attention(pass, body.attention, kept, result);
  }
  Operand h = std::exchange(kept.h, input_of_mlp(pass, body, kept.h));
  h.low = kept.h.low;  // the MLP's lies where another was
  inner(pass, body.mlp, kept, place);
  kept.h = std::move(h);
}

at::Tensor backward(BranchPass& pass, const ParallelBody& body, ResultGrad dresult,
                    KeptBranch& kept) {
  Operand last = std::exchange(kept.last, std::exchange(kept.attention_last, {}));
  const at::Tensor dh = backward(pass, body.attention, {dresult.operand, {}}, kept);
  pass.update_gradients.add();  // those of the MLP may be added to the same A
  kept.h = input_of_mlp(pass, body, kept.h);
  kept.last = std::move(last);
  return backward(pass, body.mlp, std::move(dresult), kept, dh);
}

// ---- gated MLP ----

Operand activated(const BranchPass& pass, const GatedMlpBody& body, const at::Tensor& hidden_pre) {
  return pass.kernels.operand(gated_gelu(hidden_pre), pass.number(&body.fc2), false);
}

void inner(const BranchPass& pass, const GatedMlpBody& body, KeptBranch& kept) {
  kept.hidden_pre = linear(pass, kept.h, body.fc1);
  kept.last = activated(pass, body, kept.hidden_pre);
}

at::Tensor backward(BranchPass& pass, const GatedMlpBody& body, ResultGrad dresult,
                    KeptBranch& kept) {
  const at::Tensor dgated = last_backward(pass, dresult, kept, body.fc2);
  dresult = {};
  const at::Tensor dpre = gated_gelu_backward(dgated, kept.hidden_pre);
  kept.hidden_pre = at::Tensor();
  return linear_backward(pass, dpre, 0, kept.h, body.fc1, pass.wants_dh);
}

// ---- functions ----

void inner(const BranchPass& pass, const FunctionBody& body, KeptBranch& kept) {
  if (!pass.keeps) {
    kept.result = body.function(kept.h.value);
    return;
  }
  const at::AutoGradMode with_gradients(true);
  kept.leaf = kept.h.value.detach().set_requires_grad(true);
  kept.graph = body.function(kept.leaf);
}

at::Tensor backward(BranchPass& /*pass*/, const FunctionBody& /*body*/, ResultGrad dresult,
                    KeptBranch& kept) {
  torch::autograd::backward({std::exchange(kept.graph, at::Tensor())}, {dresult.operand.value});
  return std::exchange(kept.leaf, at::Tensor()).grad();
}

}  // namespace

std::vector<const LinearWeights*> linears_of(const Branch& branch) {
  if (const auto* attention = std::get_if<SelfAttentionBody>(&branch.body)) {
    return {&attention->qkv, &attention->proj};
  }
  if (const auto* joint = std::get_if<JointAttentionBody>(&branch.body)) {
    return {&joint->parts[0].qkv, &joint->parts[1].qkv, &joint->parts[0].proj,
            &joint->parts[1].proj};
  }
  if (const auto* cross = std::get_if<CrossAttentionBody>(&branch.body)) {
    return cross->first.count > 0
               ? std::vector{&cross->q, &cross->kv, &cross->first.kv, &cross->proj}
               : std::vector{&cross->q, &cross->kv, &cross->proj};
  }
  if (const auto* mlp = std::get_if<MlpBody>(&branch.body)) {
    return {&mlp->fc1, &mlp->fc2};
  }
  if (const auto* gated = std::get_if<GatedMlpBody>(&branch.body)) {
    return {&gated->fc1, &gated->fc2};
  }
  if (const auto* both = std::get_if<ParallelBody>(&branch.body)) {
    return {&both->attention.qkv, &both->mlp.fc1, &both->attention.proj, &both->mlp.fc2};
  }
  return {};  // of a function
}

void push_tensors(KeptBranch& kept, std::vector<at::Tensor*>& tensors) {
  AttendedTokens& attended = kept.attended;
  tensors.insert(tensors.end(),
                 {&kept.x, &kept.statistics.mean, &kept.statistics.rstd, &kept.packed,
                  &attended.ready, &attended.out, &attended.lse, &kept.hidden_pre, &kept.result});
  for (KeptText* text : {&kept.text, &kept.first_text}) {
    tensors.insert(tensors.end(), {&text->packed, &text->keys, &text->out, &text->lse});
  }
  for (Operand* operand :
       {&kept.h, &kept.text.text, &kept.first_text.text, &kept.attention_last, &kept.last}) {
    tensors.insert(tensors.end(), {&operand->value, &operand->fp8, &operand->fp8_transposed,
                                   &operand->factors, &operand->transposed_factors, &operand->low});
  }
}

const LinearWeights* first_linear(const Branch& branch, size_t stream) {
  if (const auto* joint = std::get_if<JointAttentionBody>(&branch.body)) {
    return &joint->parts[stream].qkv;
  }
  const auto linears = linears_of(branch);
  return linears.empty() ? nullptr : linears.front();
}

const LinearWeights* last_linear(const Branch& branch, size_t stream) {
  if (const auto* joint = std::get_if<JointAttentionBody>(&branch.body)) {
    const LinearWeights& proj = joint->parts[stream].proj;
    return proj.weight.defined() ? &proj : nullptr;
  }
  const auto linears = linears_of(branch);
  return linears.empty() ? nullptr : linears.back();
}

bool ends_in_product(const Branch& branch) {
  return !std::holds_alternative<JointAttentionBody>(branch.body) &&
         !std::holds_alternative<ParallelBody>(branch.body) &&
         !std::holds_alternative<FunctionBody>(branch.body);
}

std::vector<at::Tensor> added_gradients(const Branch& branch) {
  std::vector<at::Tensor> gradients;
  for (const LinearWeights* linear : linears_of(branch)) {
    gradients.push_back(linear->bias_grad);
    push_update_gradients(*linear, gradients);
  }
  const auto push_rule = [&gradients](const HeadRule& rule) {
    gradients.insert(gradients.end(),
                     {rule.q_weight_grad, rule.k_weight_grad, rule.q_bias_grad, rule.k_bias_grad});
  };
  const auto push_all = [&gradients](const std::vector<at::Tensor>& more) {
    gradients.insert(gradients.end(), more.begin(), more.end());
  };
  if (const auto* attention = std::get_if<SelfAttentionBody>(&branch.body)) {
    push_rule(attention->rule);
    push_all(attention->gradients);
  } else if (const auto* joint = std::get_if<JointAttentionBody>(&branch.body)) {
    push_rule(joint->parts[0].rule);
    push_rule(joint->parts[1].rule);
    push_all(joint->gradients);
  } else if (const auto* both = std::get_if<ParallelBody>(&branch.body)) {
    push_rule(both->attention.rule);
    push_all(both->attention.gradients);
  } else if (const auto* cross = std::get_if<CrossAttentionBody>(&branch.body)) {
    push_rule(cross->rule);
    gradients.push_back(cross->first.k_weight_grad);
  } else if (const auto* function = std::get_if<FunctionBody>(&branch.body)) {
    gradients = function->gradients;
  }
  std::erase_if(gradients, [](const at::Tensor& gradient) { return !gradient.defined(); });
  return gradients;
}

bool is_kept(const Branch& branch) {
  return branch.kept != nullptr && branch.kept->is_reused &&
         !std::holds_alternative<ParallelBody>(branch.body);
}

void run_inner(const BranchPass& pass, const Branch& branch, KeptBranch& kept, KeptBranch& second) {
  if (const auto* joint = std::get_if<JointAttentionBody>(&branch.body)) {
    inner(pass, *joint, {&kept, &second});
    return;
  }
  if (const auto* both = std::get_if<ParallelBody>(&branch.body)) {
    inner(pass, *both, kept, branch.kept);
    return;
  }
  std::visit(
      [&](const auto& body) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(body)>, JointAttentionBody>) {
          inner(pass, body, kept);
        }
      },
      branch.body);
}

void pack_text(const BranchPass& pass, const CrossAttentionBody& body, KeptBranch& kept) {
  for (const TextPart& part : text_parts(pass, body, kept)) {
    const at::Tensor tokens = part.of_all(rows_of(pass.text), pass.text.size(0));
    part.kept.text =
        pass.kernels.operand(tokens.reshape({-1, tokens.size(2)}), pass.number(&part.kv), false);
    part.kept.packed = linear(pass, part.kept.text, part.kv);
  }
}

Operand gathered_input(const BranchPass& pass, const at::Tensor& part,
                       const LinearWeights* reader) {
  const at::Tensor rows = pass.ranks.gather(part, /*beside=*/false).result();
  return reader != nullptr ? input_of(pass, rows, *reader) : Operand{.value = rows};
}

namespace {

/// Computes the first half of the gradients of weights that wait, or one more.
void compute_late_half(BranchPass& pass) {
  const auto end = pass.late.begin() + (std::ssize(pass.late) + 1) / 2;
  for (auto late = pass.late.begin(); late != end; ++late) {
    (*late)();
  }
  pass.late.erase(pass.late.begin(), end);
}

/// Has gradients of weights wait in pass.late where ranks exchange what backward makes, unless
/// somebody has them wait elsewhere.
class PutOff {
 public:
  explicit PutOff(BranchPass& pass)
      : kernels_(pass.kernels), is_ours_(pass.ranks.sum && !pass.kernels.puts_off_weight_grads()) {
    if (is_ours_) {
      kernels_.put_off_weight_grads(&pass.late);
    }
  }
  ~PutOff() {
    if (is_ours_) {
      kernels_.put_off_weight_grads(nullptr);
    }
  }
  PutOff(const PutOff&) = delete;
  PutOff& operator=(const PutOff&) = delete;

 private:
  BlockKernels& kernels_;
  bool is_ours_;
};

/// Begins to sum over ranks what each has made of all rows, of the own rows where they are divided.
/// A function has summed its own.
Exchange begin_sum(const BranchPass& pass, const Branch& branch, const at::Tensor& rows,
                   bool beside) {
  if (!pass.ranks.sum || !rows.defined()) {
    return {rows, {}};
  }
  const bool is_sum = std::holds_alternative<FunctionBody>(branch.body);
  if (pass.ranks.divides_rows()) {
    return is_sum ? Exchange{pass.ranks.part_of(rows), {}} : pass.ranks.scatter(rows, beside);
  }
  return is_sum ? Exchange{rows, {}} : pass.ranks.sum(rows, beside);
}

at::Tensor summed(const BranchPass& pass, const Branch& branch, const at::Tensor& rows) {
  return begin_sum(pass, branch, rows, /*beside=*/false).result();
}

/// Products of fewer rows lose more by being halved than they hide.
constexpr int64_t kLeastRowsOfHalf = 1024;

/// What summed() makes of linear(). Of many rows, one half is exchanged while the other is
/// computed.
at::Tensor summed_linear(const BranchPass& pass, const Branch& branch, Operand& x,
                         const LinearWeights& weights, const at::Tensor& sum = {}) {
  const int64_t half = x.rows() / 2;
  if (!pass.ranks.sum || pass.ranks.divides_rows() || half < kLeastRowsOfHalf || !x.has_parts()) {
    return summed(pass, branch, linear(pass, x, weights, sum));
  }
  const Product product = forward_product(pass, x, weights);
  const int64_t rows = x.rows();
  const at::Tensor addend = sum_of(sum, product.addend);
  const at::Tensor all = addend.defined() ? addend
                                          : pass.kernels.empty_with_room(
                                                rows, product.weights.weight.size(0), /*room=*/0);
  const auto computed = [&](int64_t first, int64_t count) {
    const at::Tensor own = all.narrow(0, first, count);
    return pass.kernels.linear(product.operand.some_rows(first, count), product.weights,
                               addend.defined() ? own : at::Tensor(), own);
  };
  const Exchange first = pass.ranks.sum(computed(0, half), /*beside=*/true);
  const at::Tensor second = computed(half, rows - half);
  (void)first.result();
  (void)pass.ranks.sum(second, /*beside=*/false).result();
  return all;
}

/// What waits is computed beside the sums of gradients and, where rows are divided, the gathering
/// behind them.
void compute_beside_sum(BranchPass& pass) {
  if (pass.ranks.divides_rows()) {
    compute_late_half(pass);
  } else {
    compute_late(pass);
  }
}

}  // namespace

ResultGrad gathered_grad(BranchPass& pass, const at::Tensor& part, const LinearWeights* producer) {
  const Exchange exchange = pass.ranks.gather(part, /*beside=*/true);
  compute_late_half(pass);
  const at::Tensor rows = exchange.result();
  if (producer == nullptr) {
    return {{.value = rows}};
  }
  const int64_t room = pass.kernels.room(*producer);
  ResultGrad grad = pass.kernels.result_grad(with_room(pass, rows, room), pass.number(producer),
                                             producer->bias_grad);
  grad.operand.room = room;
  return grad;
}

void compute_late(BranchPass& pass) {
  for (const auto& late : std::exchange(pass.late, {})) {
    late();
  }
}

void run_last(const BranchPass& pass, const Branch& branch, KeptBranch& kept, size_t stream) {
  if (is_kept(branch)) {
    kept.result = branch.kept->streams[stream];
    return;
  }
  if (const auto* both = std::get_if<ParallelBody>(&branch.body)) {
    const at::Tensor all = side_by_side(kept.attention_last.value, kept.last.value);
    const LinearWeights joined = all.defined() ? joined_last(*both) : LinearWeights{};
    if (joined.weight.defined()) {
      Operand rows{.value = all};
      kept.result = summed_linear(pass, branch, rows, joined);
    } else {
      kept.result = summed_linear(pass, branch, kept.last, both->mlp.fc2,
                                  linear(pass, kept.attention_last, both->attention.proj));
    }
    return;
  }
  if (const LinearWeights* last = last_linear(branch, stream)) {
    kept.result = summed_linear(pass, branch, kept.last, *last);
  } else {
    kept.result = summed(pass, branch, pass.keeps ? kept.graph.detach() : kept.result);
  }
  if (branch.kept != nullptr) {
    branch.kept->streams[stream] = kept.result;
  }
}

void forget_unread(const Branch& branch, KeptBranch& kept, size_t stream) {
  const auto reads = [](const LinearWeights* linear) {
    return linear != nullptr && (linear->weight_grad.defined() || !linear->updates.empty());
  };
  const auto* both = std::get_if<ParallelBody>(&branch.body);
  if (!reads(first_linear(branch, stream)) && !(both != nullptr && reads(&both->mlp.fc1))) {
    kept.h = {};  // a function has its own
  }
  if (!reads(last_linear(branch, stream))) {
    kept.last = {};
  }
  if (both != nullptr && !reads(&both->attention.proj)) {
    kept.attention_last = {};
  }
}

void forget_inner(Recompute level, const Branch& branch, KeptBranch& kept) {
  const bool is_mlp = std::holds_alternative<MlpBody>(branch.body) ||
                      std::holds_alternative<GatedMlpBody>(branch.body) ||
                      std::holds_alternative<ParallelBody>(branch.body);
  if (level != Recompute::kNone) {
    kept.attended.ready = at::Tensor();
    if (is_mlp) {
      kept.last = {};
    }
  }
  if (level == Recompute::kMlp) {
    kept.hidden_pre = at::Tensor();
  }
  // Weight gradients read the transposed copies only.
  for (Operand* operand :
       {&kept.h, &kept.text.text, &kept.first_text.text, &kept.last, &kept.attention_last}) {
    operand->fp8 = at::Tensor();
  }
}

void forget_attended(const Branch& branch, const std::array<KeptBranch*, 2>& kept) {
  const auto* joint = std::get_if<JointAttentionBody>(&branch.body);
  if (joint != nullptr && !joint->attend && kept[0]->last.value.defined() &&
      kept[1]->last.value.defined()) {
    kept[0]->attended.out = at::Tensor();
  }
}

void remember_inner(const BranchPass& pass, const Branch& branch, KeptBranch& kept) {
  const auto remember = [&](const auto& body) {
    if (kept.hidden_pre.defined()) {
      kept.last = activated(pass, body, kept.hidden_pre);
    } else {
      inner(pass, body, kept);
    }
  };
  if (const auto* mlp = std::get_if<MlpBody>(&branch.body)) {
    remember(*mlp);
  } else if (const auto* gated = std::get_if<GatedMlpBody>(&branch.body)) {
    remember(*gated);
  } else if (const auto* both = std::get_if<ParallelBody>(&branch.body)) {
    remember(both->mlp);
  }
}

at::Tensor run_backward(BranchPass& pass, const Branch& branch, ResultGrad dresult,
                        KeptBranch& kept) {
  compute_late(pass);
  std::optional<PutOff> put_off(pass);
  const at::Tensor dh = std::visit(
      [&](const auto& body) -> at::Tensor {
        if constexpr (std::is_same_v<std::decay_t<decltype(body)>, JointAttentionBody>) {
          KINORA_UNREACHABLE("[block_stack] a branch off two streams goes back as one");
        } else {
          return backward(pass, body, std::move(dresult), kept);
        }
      },
      branch.body);
  kept.h = {};
  put_off.reset();
  const Exchange exchange = begin_sum(pass, branch, dh, /*beside=*/true);
  compute_beside_sum(pass);
  return exchange.result();
}

std::array<at::Tensor, 2> run_joint_backward(BranchPass& pass, const Branch& branch,
                                             std::array<ResultGrad, 2> dresults,
                                             std::array<KeptBranch*, 2> kept) {
  compute_late(pass);
  std::optional<PutOff> put_off(pass);
  const auto dh =
      backward(pass, std::get<JointAttentionBody>(branch.body), std::move(dresults), kept);
  put_off.reset();
  const std::array exchanges = {begin_sum(pass, branch, dh[0], /*beside=*/true),
                                begin_sum(pass, branch, dh[1], /*beside=*/true)};
  compute_beside_sum(pass);
  return {exchanges[0].result(), exchanges[1].result()};
}

at::Tensor low_of(const LinearWeights& linear, const at::Tensor& x) {
  return at::mm(x, stacked_a(linear).t());
}

at::Tensor raised(const LinearWeights& linear, const at::Tensor& low) {
  const int64_t out = linear.weight.size(0);
  int64_t changed = 0;
  for (const LowRankWeights& update : linear.updates) {
    changed += update.rows();
  }
  const at::Tensor sum = changed == out ? at::empty({low.size(0), out}, low.options())
                                        : at::zeros({low.size(0), out}, low.options());
  int64_t column = 0;
  for (const LowRankWeights& update : linear.updates) {
    at::Tensor part = sum.narrow(1, update.first_row, update.rows());
    at::mm_out(part, low.narrow(1, column, update.rank()) * update.scale, update.b.t());
    column += update.rank();
  }
  return sum;
}

at::Tensor update_backward(const LinearWeights& linear, const at::Tensor& dy, const at::Tensor& x,
                           const at::Tensor& low) {
  const at::Tensor a = stacked_a(linear);
  const at::Tensor dlow = at::empty({dy.size(0), a.size(0)}, dy.options());
  int64_t column = 0;
  for (const LowRankWeights& update : linear.updates) {
    const at::Tensor own_dy = dy.narrow(1, update.first_row, update.rows());
    at::Tensor own_dlow = dlow.narrow(1, column, update.rank());
    at::mm_out(own_dlow, own_dy, update.b);
    own_dlow.mul_(update.scale);
    if (update.b_grad.defined()) {
      const at::Tensor own_low = low.narrow(1, column, update.rank());
      at::Tensor(update.b_grad).add_(at::mm(own_dy.t(), own_low), update.scale);
    }
    column += update.rank();
  }
  if (linear.updates.front().a_grad.defined()) {
    const at::Tensor da = at::mm(dlow.t(), x);
    int64_t row = 0;
    for (const LowRankWeights& update : linear.updates) {
      at::Tensor(update.a_grad).add_(da.narrow(0, row, update.rank()));
      row += update.rank();
    }
  }
  return at::mm(dlow, a);
}

void push_update_gradients(const LinearWeights& linear, std::vector<at::Tensor>& gradients) {
  for (const LowRankWeights& update : linear.updates) {
    gradients.insert(gradients.end(), {update.a_grad, update.b_grad});
  }
}

}  // namespace kinora::ops
