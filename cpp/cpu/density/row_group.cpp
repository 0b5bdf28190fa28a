#include "cpu/density/row_group.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "cpu/system/dispatch.h"

namespace ribbit::cpu {

std::vector<ShardNode> RowGroup::nodes(int of) const {
  std::vector<ShardNode> found;
  const std::int64_t end = first_shard(of + 1);
  for (std::int64_t at = first_shard(of); at < end;) {
    int level = 0;
    const auto fits = [&](int l) {
      const std::int64_t width = std::int64_t{1} << l;
      return at % width == 0 && std::min(shards, at + width) <= end;
    };
    while ((std::int64_t{1} << level) < shards && fits(level + 1)) ++level;
    found.push_back({level, at >> level});
    at += std::int64_t{1} << level;
  }
  return found;
}

template <class T>
GradientExchange<T>::GradientExchange(const RowGroup& group, std::int64_t dim)
    : group_(group), dim_(dim) {
  std::map<std::pair<int, std::int64_t>, std::size_t> waiting;  // (level, index) -> slot
  for (int r = 0; r < group_.ranks; ++r) {
    nodes_.push_back(group_.nodes(r));
    slice_bytes_.push_back(size_of(r) * static_cast<std::int64_t>(sizeof(T)));
    for (std::size_t n = 0; n < nodes_.back().size(); ++n) {
      waiting[{nodes_.back()[n].level, nodes_.back()[n].index}] = slots_.size();
      slots_.emplace_back(r, n);
    }
  }
  // Level by level as tree_sum does: neighbours, and an odd one out goes up alone.
  std::int64_t count = group_.shards;
  for (int level = 0; count > 1; ++level, count = (count + 1) / 2) {
    for (std::int64_t index = 0; index < count; index += 2) {
      const auto left = waiting.find({level, index});
      if (left == waiting.end()) continue;  // below a node that a rank has added up itself
      if (index + 1 < count) additions_.push_back({left->second, waiting.at({level, index + 1})});
      waiting[{level + 1, index / 2}] = left->second;
    }
  }
  std::int64_t out = 0, in = 0;
  for (int r = 0; r < group_.ranks; ++r) {
    out += message(group_.rank, r, true);
    in += message(r, group_.rank, true);
  }
  out_.resize(out);
  // Behind what comes: the rank's own sums of its slice.
  in_.resize(in + static_cast<std::int64_t>(nodes_[static_cast<std::size_t>(group_.rank)].size()) *
                      slice_bytes_[static_cast<std::size_t>(group_.rank)]);
}

template <class T>
std::int64_t GradientExchange<T>::message(int from, int to, bool values) const {
  if (from == to) return 0;
  const std::int64_t own = group_.first_shard(from + 1) - group_.first_shard(from);
  return (values ? own * static_cast<std::int64_t>(sizeof(double)) : 0) +
         static_cast<std::int64_t>(nodes_[static_cast<std::size_t>(from)].size()) *
             slice_bytes_[static_cast<std::size_t>(to)];
}

template <class T>
T* GradientExchange<T>::slot(std::size_t number, bool values) {
  const auto& [rank, node] = slots_[number];
  const std::int64_t size = slice_bytes_[static_cast<std::size_t>(group_.rank)];
  std::int64_t at = 0;
  for (int r = 0; r < (rank == group_.rank ? group_.ranks : rank); ++r) {
    at += message(r, group_.rank, values);
  }
  if (rank != group_.rank)
    at += message(rank, group_.rank, values);  // its sums end there
  else
    at += static_cast<std::int64_t>(nodes_[static_cast<std::size_t>(rank)].size()) * size;
  const auto behind =
      static_cast<std::int64_t>(nodes_[static_cast<std::size_t>(rank)].size() - node);
  return reinterpret_cast<T*>(in_.data() + at - behind * size);
}

template <class T>
void GradientExchange<T>::pack(const T* shard_grads, std::int64_t first, std::int64_t last,
                               bool values) {
  const auto& own = nodes_[static_cast<std::size_t>(group_.rank)];
  std::size_t mine = 0;
  for (int r = 0; r < group_.rank; ++r) mine += nodes_[static_cast<std::size_t>(r)].size();
  std::int64_t at = 0;
  for (int r = 0; r < group_.ranks; ++r) {
    at += message(group_.rank, r, values);
    const std::int64_t from = group_.slice(dim_, r), to = group_.slice(dim_, r + 1);
    const std::int64_t begin = std::max(first, from), end = std::min(last, to);
    if (begin >= end) continue;
    for (std::size_t n = 0; n < own.size(); ++n) {
      // The sums are the last of a message.
      T* target = r == group_.rank
                      ? slot(mine + n, values)
                      : reinterpret_cast<T*>(out_.data() + at -
                                             static_cast<std::int64_t>(own.size() - n) *
                                                 slice_bytes_[static_cast<std::size_t>(r)]);
      const std::int64_t shard = own[n].first();
      const std::int64_t count =
          std::min(group_.first_shard(group_.rank + 1), shard + (std::int64_t{1} << own[n].level)) -
          shard;
      kernels<T>().tree_sum(shard_grads + (shard - group_.own_first()) * dim_ + begin, dim_, count,
                            end - begin, target + (begin - from));
    }
  }
}

template <class T>
bool GradientExchange<T>::swap(bool values, double* shard_ll) {
  std::vector<std::int64_t> sent, got;
  std::int64_t at = 0;
  const auto bytes = [](std::int64_t numbers) {
    return static_cast<std::size_t>(numbers) * sizeof(double);
  };
  for (int r = 0; r < group_.ranks; ++r) {
    sent.push_back(message(group_.rank, r, values));
    got.push_back(message(r, group_.rank, values));
    if (values && r != group_.rank) {
      std::memcpy(out_.data() + at, shard_ll + group_.own_first(), bytes(group_.own_shards()));
    }
    at += sent.back();
  }
  if (!group_.exchange->swap(out_.data(), sent, in_.data(), got)) return false;
  at = 0;
  for (int r = 0; r < group_.ranks; ++r) {
    if (values && r != group_.rank) {
      std::memcpy(shard_ll + group_.first_shard(r), in_.data() + at,
                  bytes(group_.first_shard(r + 1) - group_.first_shard(r)));
    }
    at += got[static_cast<std::size_t>(r)];
  }
  return true;
}

template <class T>
void GradientExchange<T>::add(std::int64_t first, std::int64_t last, bool values) {
  for (const Addition& one : additions_) {
    T* to = slot(one.to, values);
    const T* from = slot(one.from, values);
    for (std::int64_t i = first; i < last; ++i) to[i] += from[i];
  }
}

template <class T>
bool GradientExchange<T>::gather(bool values, T* grad) {
  return group_.exchange->gather(reinterpret_cast<const std::byte*>(slot(0, values)),
                                 reinterpret_cast<std::byte*>(grad), slice_bytes_);
}

template class GradientExchange<float>;
template class GradientExchange<double>;

}  // namespace ribbit::cpu
