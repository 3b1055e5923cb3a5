// What determined the length of a stretch of time: a chain of device work, launches, waits and host threads, found by
// walking back from its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "dependencies.hpp"
#include "handover.hpp"
#include "numbers.hpp"

namespace stepscope {

// The first four are the kinds of device work. `host` is time of a thread, in whose place PathCharge puts one of those
// that follow it, by what was open then.
enum class PathKind : int8_t {
  compute, communication, memcpy, memset, launch, scheduling, graph, device_wait, sync, thread_wait, unknown, host,
  dataloader, op, python, allocation, call, nothing,
};

// One piece of a path. `event` is the work, call or host event it is about, kNull for none; `place` is its stream or thread.
struct PathPiece {
  int64_t start, end, event, label;
  int32_t window, place;
  PathKind kind;
};

struct PathRules {
  int64_t scheduling = 3'000;    // a gap on the device that needs no other explanation
  int64_t thread_wait = 50'000;  // a pause of a thread after which it may have waited for a thread that communicates
};

// Walks from the end of a window back to its start; the pieces cover it once, the latest first.
class PathWalk {
 public:
  PathWalk(const Dependencies& graph, std::unordered_map<int32_t, Role> roles, PathRules rules = {})
      : graph_(graph), handovers_(graph, std::move(roles), rules.thread_wait), rules_(rules) {}
  // A window and the thread that leads it, -1 for none.
  void walk(int32_t window, int64_t start, int64_t end, int32_t lead);

  std::vector<PathPiece> pieces;

 private:
  void emit(PathKind kind, int64_t from, int32_t place, int64_t event = kNull, int64_t label = kNull);
  void on_device();
  void on_host();
  void lost();
  Handover find_hop() const;
  const Dependencies::Join* find_join() const;
  void move_to_work(int32_t work, int64_t time);
  const Dependencies::Work& work(int32_t at) const { return graph_.works()[static_cast<size_t>(at)]; }

  const Dependencies& graph_;
  const Handovers handovers_;
  const PathRules rules_;
  int64_t begin_ = 0, now_ = 0;
  int32_t window_ = 0, lead_ = -1, work_ = -1, thread_ = -1;
  int32_t lowest_ = 0;  // the first in order of the work seen at this instant: to come to it again is to go in circles
};

// Splits the host pieces of a path by what was open then, and sums everything up by window, kind and label.
class PathCharge {
 public:
  enum class Open : int8_t { range, dataloader, communication, frame, op, sync, allocation, call };
  static constexpr int kOpens = 8;
  struct Row {
    int64_t event, start, end, label;
    Open open;
  };
  struct Key {
    int32_t window;
    PathKind kind;
    int64_t label;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& k) const {
      const auto mixed = (static_cast<uint64_t>(k.label) + static_cast<uint64_t>(k.window) * 31u) * 0x9E3779B97F4A7C15u;
      return static_cast<size_t>(mixed ^ (mixed >> 29)) + static_cast<size_t>(k.kind);
    }
  };
  struct Sum {
    int64_t time = 0, pieces = 0, event = kNull;  // an event for its name
  };

  PathCharge(std::vector<PathPiece> pieces, bool keep);
  std::vector<int32_t> threads() const;  // whose time is on the path
  void add(int32_t thread, const Row& row);
  // Takes what was added; rows added later must not begin earlier.
  void advance();
  void finish();

  std::unordered_map<Key, Sum, KeyHash> sums;
  std::vector<PathPiece> kept;  // the whole path, in order of time, if it was asked for

 private:
  struct Thread {
    std::vector<Row> waiting;  // in stretches that are in order, as they lie in the store
    std::vector<Row> stack;
    std::vector<PathPiece> pieces;  // of the path, in order of time
    size_t at = 0;
    int64_t cursor = kNull, loading_until = kNull;
    Row loading{};
    PathPiece last{};  // not yet booked, for more of the same may follow
  };
  void visit_waiting(Thread& thread);
  void visit(Thread& thread, const Row& row);
  void settle(Thread& thread, int64_t until);
  void charge(Thread& thread, int64_t until);
  static PathPiece innermost(const Thread& thread, int64_t now);
  void join(Thread& thread, const PathPiece& piece);
  void book(const PathPiece& piece);

  std::unordered_map<int32_t, Thread> threads_;
  bool keep_;
};

}  // namespace stepscope
