#pragma once
// How an evaluator's work goes over chains: each on a thread or a team, whole or slice by slice.

#include <algorithm>
#include <cstdint>
#include <memory>

#include "cpu/density/evaluator.h"
#include "cpu/system/shards.h"
#include "cpu/system/slices.h"

namespace ribbit::cpu {

template <class T>
template <class Body>
void Evaluator<T>::run_chains(const Cut& cut, Crew& crew, std::int64_t chains, Cancel& cancel,
                              const Body& body) {
  if (cut.group == nullptr) {
    for_each_chain(crew, chains, cancel, body);
    return;
  }
  for (std::int64_t chain = 0; chain < chains && !cancel.cancelled(); ++chain) {
    for_each_chain(crew, 1, cancel,
                   [&](Team& team, int index, int thread, std::int64_t, int first_thread) {
                     return body(team, index, thread, chain, first_thread);
                   });
  }
}

template <class T>
template <class Body, class Prepare>
bool Evaluator<T>::on_chains(std::int64_t chains, const Batch<T>& batch, double passes, T* grad,
                             Poll* poll, const Body& body, const Prepare& prepare,
                             const std::int64_t* order) const {
  return on_slices(
      chains, 1, batch, passes, grad, poll,
      [&](Member<T>& member, const Slice& slice) { return body(member, slice.chain); }, prepare,
      order);
}

template <class T>
template <class Body, class Prepare>
bool Evaluator<T>::on_slices(std::int64_t chains, std::int64_t most, const Batch<T>& batch,
                             double passes, T* grad, Poll* poll, const Body& body,
                             const Prepare& prepare, const std::int64_t* order) const {
  const Cut cut = cut_of(batch, chains);
  const double flops = passes * gradient_flops(batch.x.rows);
  Crew crew(static_cast<int>(std::min<std::int64_t>(threads_for(flops), cut.threads())));
  std::unique_ptr<CallSpace<T>> space = acquire(crew.size(), cut.teams, cut.own, batch.x.rows);
  for (int t = 0; t < crew.size(); ++t) {
    if (leads_team(t, crew.size(), cut.teams)) prepare(*space->teams[static_cast<std::size_t>(t)]);
  }
  WishPoll wish(poll);
  Cancel cancel(group_ != nullptr ? &wish : poll);  // rows that were fetched are for all ranks, too
  Slices slices(chains, cut.group == nullptr ? most : 1, crew.size());
  run_chains(cut, crew, slices.size(), cancel,
             [&](Team& team, int index, int thread, std::int64_t place, int first_thread) {
               Slice slice = slices.at(place);
               if (!slices.begin(slice, cancel)) return false;
               if (order != nullptr) slice.chain = order[slice.chain];
               Member<T> member{team,
                                index,
                                *space->teams[static_cast<std::size_t>(first_thread)],
                                *space->threads[static_cast<std::size_t>(thread)],
                                batch,
                                cut.shards,
                                grad != nullptr ? grad + slice.chain * dim_ : nullptr,
                                cut.pieces,
                                nullptr,
                                cut.group,
                                &wish};
               if (!body(member, slice)) return false;
               slices.end(slices.at(place));
               return true;
             });
  release(std::move(space));
  return !cancel.cancelled();
}

}  // namespace ribbit::cpu
