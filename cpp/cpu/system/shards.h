#pragma once
// How chains share threads. While there are at least as many chains as threads each thread takes
// whole chains; the chains left over are split by rows among teams of threads, where those pay.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>

#include "cpu/system/threads.h"

namespace ribbit::cpu {

// How many threads chains of `pieces` each are worth now, and a call of that many flops on them.
inline std::int64_t most_threads(std::int64_t chains, std::int64_t pieces) {
  return chains * std::min<std::int64_t>(pieces, pieces > 1 ? team_limit() : 1);
}
inline int crew_size(double flops, std::int64_t chains, std::int64_t pieces) {
  return static_cast<int>(std::min<std::int64_t>(threads_for(flops), most_threads(chains, pieces)));
}

// Whether a thread is the first of a team that gets a chain below.
inline bool leads_team(int thread, int threads, std::int64_t chains) {
  if (chains < 1 || chains >= threads) return true;
  const int size = threads / static_cast<int>(chains);
  return thread % size == 0 && thread / size < chains;
}

// Whether some chain gets more than one thread below.
inline bool has_team(int threads, std::int64_t chains) {
  const std::int64_t rest = chains % threads;
  return rest > 0 && threads / rest > 1;
}

// Calls body(team, member, chain, first_thread) on every member of the team that has the chain.
// body returns false when cancelled.
template <class Body>
void for_each_chain(Crew& crew, std::int64_t chains, Cancel& cancel, const Body& body) {
  const int threads = crew.size();
  std::int64_t solo = chains - chains % threads;
  int rest = static_cast<int>(chains - solo);
  int team_size = rest > 0 ? threads / rest : 0;
  if (solo > 0 && team_size > 0) {
    if (team_size > 1) team_size = std::min(team_size, team_limit());
    if (team_size == 1) {
      solo = chains;
      rest = team_size = 0;
    }
  }
  std::deque<Team> solos, teams;
  for (int t = 0; t < threads; ++t) solos.emplace_back(1, &cancel);
  for (int t = 0; t < rest; ++t) teams.emplace_back(team_size, &cancel);
  std::atomic<std::int64_t> next{0};
  crew.run(
      [&](int thread) {
        // Chains may take unequal numbers of steps, so threads fetch them one by one.
        for (;;) {
          const std::int64_t chain = next.fetch_add(1, std::memory_order_relaxed);
          if (chain >= solo) break;
          if (!body(solos[static_cast<std::size_t>(thread)], 0, thread, chain, thread)) return;
        }
        const int team = team_size > 0 ? thread / team_size : rest;
        if (team >= rest) return;
        Team& mine = teams[static_cast<std::size_t>(team)];
        const int member = thread % team_size;
        // The team uses its first thread's space: wait until that thread's own chains are done.
        if (!(solo > 0 ? mine.gather() : mine.barrier())) return;
        body(mine, member, thread, solo + team, team * team_size);
      },
      team_size <= 1, &cancel);
}

}  // namespace ribbit::cpu
