// Which layers of a graph work together, and where each array lies.

#include <algorithm>

#include "cpu/network/graph_pass.h"

namespace ribbit::cpu {
namespace {

// An array that is needed from one moment to another, both included.
struct Need {
  std::int64_t size, from, to;
  std::int64_t* offset;
};

// First fit, in the order of their beginnings. Returns the size of the whole.
std::int64_t place(std::vector<Need> needs) {
  std::stable_sort(needs.begin(), needs.end(),
                   [](const Need& a, const Need& b) { return a.from < b.from; });
  std::int64_t size = 0;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    std::vector<const Need*> beside;  // of those placed before, alive at the same time
    for (std::size_t j = 0; j < i; ++j) {
      if (needs[j].to >= needs[i].from) beside.push_back(&needs[j]);
    }
    std::sort(beside.begin(), beside.end(),
              [](const Need* a, const Need* b) { return *a->offset < *b->offset; });
    std::int64_t at = 0;
    for (const Need* other : beside) {
      if (*other->offset - at >= needs[i].size) break;
      at = std::max(at, *other->offset + other->size);
    }
    *needs[i].offset = at;
    size = std::max(size, at + needs[i].size);
  }
  return size;
}

// Whether the way back looks at what the layer read.
bool reads_again(const GraphNode& node) {
  switch (node.layer().stem()) {
    case Stem::kDropout:
      return false;
    case Stem::kPool:
      return node.layer().op == Op::kMaxPool;
    case Stem::kElementwise:
      return node.layer().op == Op::kActivation || node.activation >= 0;
    case Stem::kDense:
    case Stem::kConv:
    case Stem::kNorm:
    case Stem::kEmbedding:
    case Stem::kLstm:
    case Stem::kCount:
      return true;
  }
  unreachable();
}

// Whether the delta of what the layer read may be written over that of what it gave.
bool works_in_place(const GraphNode& node) {
  switch (node.layer().stem()) {
    case Stem::kElementwise:
    case Stem::kDropout:
      return true;
    case Stem::kNorm:
      return node.layer().op == Op::kFilterResponseNorm;
    case Stem::kDense:
    case Stem::kConv:
    case Stem::kPool:
    case Stem::kEmbedding:
    case Stem::kLstm:
    case Stem::kCount:
      return false;
  }
  unreachable();
}

}  // namespace

void GraphPlan::link() {
  std::vector<int> readers(value_size.size(), 0), writer(value_size.size(), -1);
  for (std::size_t s = 0; s < nodes.size(); ++s) {
    ++readers[static_cast<std::size_t>(nodes[s].in)];
    if (nodes[s].second >= 0) ++readers[static_cast<std::size_t>(nodes[s].second)];
    writer[static_cast<std::size_t>(nodes[s].out)] = static_cast<int>(s);
  }
  const auto is = [&](int s, Op op) {
    return s >= 0 && nodes[static_cast<std::size_t>(s)].layer().op == op;
  };
  for (std::size_t s = 0; s < nodes.size(); ++s) {
    GraphNode& node = nodes[s];
    const int below = writer[static_cast<std::size_t>(node.in)];
    if (below < 0 || readers[static_cast<std::size_t>(node.in)] != 1) continue;
    GraphNode& source = nodes[static_cast<std::size_t>(below)];
    if (node.layer().op == Op::kFilterResponseNorm && is(below, Op::kConv)) {
      node.conv_below = below;
      source.norm_above = static_cast<int>(s);
    }
    const Window& w = node.layer().window;
    if (node.layer().op == Op::kConv && is(below, Op::kFilterResponseNorm) && source.second < 0 &&
        w.stride_height == 1 && w.stride_width == 1) {
      node.norm_below = below;
      source.conv_above = static_cast<int>(s);
    }
  }
}

Layout GraphPlan::layout(bool backward) const {
  const auto count = static_cast<std::int64_t>(nodes.size());
  const auto back = [count](std::int64_t s) { return 2 * count - s; };  // moment of a way back
  Layout out;
  out.value.assign(value_size.size(), -1);
  out.delta.assign(value_size.size(), -1);
  out.state.assign(nodes.size(), -1);
  struct Life {
    std::int64_t from = -1, to = -1;
  };
  std::vector<Life> values(value_size.size()), deltas(value_size.size());
  std::vector<Need> needs;
  // Which value's delta shares its memory with that of a value further up.
  std::vector<std::size_t> shares(value_size.size());
  std::vector<int> readers(value_size.size(), 0);
  for (std::size_t v = 0; v < shares.size(); ++v) shares[v] = v;
  for (const GraphNode& node : nodes) {
    ++readers[static_cast<std::size_t>(node.in)];
    if (node.second >= 0) ++readers[static_cast<std::size_t>(node.second)];
  }
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    const auto in = static_cast<std::size_t>(node->in);
    if (node->in_delta && works_in_place(*node) && readers[in] == 1) {
      shares[in] = shares[static_cast<std::size_t>(node->out)];
    }
  }
  for (std::int64_t s = 0; s < count; ++s) {
    const GraphNode& node = nodes[static_cast<std::size_t>(s)];
    const auto value = [&](int v) -> Life& { return values[static_cast<std::size_t>(v)]; };
    const bool looks = node.layer().op == Op::kMaxPool && node.activation < 0;
    value(node.out) = {s, backward && looks ? back(s) : s};
    for (const int v : {node.in, node.second}) {
      if (v < 0) continue;
      value(v).to = std::max(value(v).to, backward && reads_again(node) ? back(s) : s);
    }
    if (node.state > 0) {
      const std::int64_t from = node.conv_below >= 0 ? node.conv_below : s;
      needs.push_back(
          {node.state, from, backward ? back(from) : s, &out.state[static_cast<std::size_t>(s)]});
    }
    if (backward && node.norm_above >= 0) value(node.out).to = back(s);
    if (!backward) continue;
    deltas[static_cast<std::size_t>(node.out)].to = back(s);
    for (const int v : {node.in_delta ? node.in : -1, node.second_delta ? node.second : -1}) {
      if (v > 0) deltas[static_cast<std::size_t>(v)].from = back(s);  // the last reader stays
    }
  }
  // The likelihood reads the output and writes its delta between the ways.
  Life& last = values[static_cast<std::size_t>(output)];
  last.to = std::max(last.to, count);
  if (backward) deltas[static_cast<std::size_t>(output)].from = count;
  // A value further down is later on the way back.
  for (std::size_t v = 1; v < value_size.size(); ++v) {
    Life& shared = deltas[shares[v]];
    if (shares[v] != v) shared.to = std::max(shared.to, deltas[v].to);
  }
  for (std::size_t v = 1; v < value_size.size(); ++v) {
    needs.push_back({value_size[v], values[v].from, values[v].to, &out.value[v]});
    if (deltas[v].from >= 0 && shares[v] == v) {
      needs.push_back({value_size[v], deltas[v].from, deltas[v].to, &out.delta[v]});
    }
  }
  out.size = place(std::move(needs));
  for (std::size_t v = 1; v < value_size.size(); ++v) out.delta[v] = out.delta[shares[v]];
  return out;
}

GraphPlan::Prefix GraphPlan::before_masks() const {
  std::size_t masked = 0;
  while (masked < nodes.size() && nodes[masked].layer().op != Op::kDropout) ++masked;
  for (std::size_t first = masked; first > 0; --first) {
    // Values from before that are read from here on. A norm and its convolution stay together.
    std::vector<int> crossing;
    for (std::size_t s = first; s < nodes.size(); ++s) {
      if (nodes[s].conv_below >= 0 && nodes[s].conv_below < static_cast<int>(first)) {
        crossing.assign(2, -1);
        break;
      }
      for (const int v : {nodes[s].in, nodes[s].second}) {
        const bool earlier = v >= 0 && (v == 0 || v <= nodes[first - 1].out);
        if (earlier && std::find(crossing.begin(), crossing.end(), v) == crossing.end()) {
          crossing.push_back(v);
        }
      }
    }
    if (crossing.size() == 1) return {first, crossing.front()};
  }
  return {};
}

}  // namespace ribbit::cpu
