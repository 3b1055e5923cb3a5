// Threads that work for one another: who gives work to whom, and who pauses until it is done.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>

#include "dependencies.hpp"

namespace stepscope {

// Threads by who hands work to whom: the leading one to the engine's, both to those that communicate.
enum class Role : int8_t { lead, engine, communication, other };
constexpr int kRoles = 4;

// What a thread that paused went on after.
struct Handover {
  int64_t time = kNull;   // the instant of the other thread that it went on after
  int64_t until = kNull;  // from when on this thread went on by itself
  int32_t thread = -1;    // the other one, -1 for none
  bool given = false;     // the other one gave it work; else it had worked for this one
};

class Handovers {
 public:
  // A pause of at least `thread_wait` may have been for a thread that communicates.
  Handovers(const Dependencies& graph, std::unordered_map<int32_t, Role> roles, int64_t thread_wait)
      : graph_(graph), roles_(std::move(roles)), thread_wait_(thread_wait) {}

  const std::unordered_map<int32_t, Role>& roles() const { return roles_; }
  Role role(int32_t thread, int32_t lead) const;
  // The last instant, no later than `until`, at which a thread ended something, or began it; kNull if there is none.
  int64_t last_sign(int32_t thread, int64_t until, bool starts_too) const;
  // Who worked last while a thread paused, if that explains the pause.
  Handover in_pause(int32_t thread, int32_t lead, int64_t gap_start, int64_t gap_end) const;

 private:
  const Dependencies& graph_;
  const std::unordered_map<int32_t, Role> roles_;
  const int64_t thread_wait_;
};

}  // namespace stepscope
