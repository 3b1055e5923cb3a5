// Idle time of devices: the gaps between their work, and what the host did meanwhile.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "numbers.hpp"

namespace stepscope {

// Times in which nothing ran on a device, and the launch of the work that ended them.
class GapFinder {
 public:
  struct Work {
    int64_t device, start, dur, event, launch;
  };
  struct Gaps {
    std::vector<int32_t> device, thread;
    std::vector<int64_t> start, dur, before, after, launch, launch_start, late;
  };

  void add_launch(int64_t event, int64_t thread, int64_t start) {
    launches_.push_back({event, start, static_cast<int32_t>(thread)});
  }
  void build();  // all launches are there
  // Work comes in order of start, then of place in the file; devices are numbered from 0.
  void push(const Work& work);
  Gaps take() { return std::exchange(found_, {}); }
  size_t rows() const { return found_.start.size(); }

 private:
  struct Launch {
    int64_t event, start;
    int32_t thread;
  };
  struct Last {
    int64_t end = kNull, event = kNull;
  };
  void add(const Work& work, const Last& last);
  const Launch* find(int64_t event);

  std::vector<Launch> launches_;
  size_t at_ = 0;  // where the last one was found
  std::vector<Last> last_;  // by device the work that ended last
  Gaps found_;
};

// What host threads did at each instant: the first of some kinds of event that is open, or nothing.
class HostTime {
 public:
  static constexpr size_t kKinds = 7;
  using Times = std::array<int64_t, kKinds + 1>;  // by kind; the last is for nothing

  // Only time inside the windows is counted; they are disjoint and sorted.
  HostTime(std::vector<int64_t> window_starts, std::vector<int64_t> window_ends);

  // Events come in any order; memory is 16 bytes for each stretch of one thread and kind without a break.
  void add(int64_t thread, int64_t start, int64_t end, size_t kind);
  // Many of one thread and kind, whose times count from `base`.
  void add_of_thread(int64_t thread, size_t kind, const int64_t* start, const int64_t* dur, size_t rows, int64_t base);
  // Calls that wait are also found one by one.
  void add_wait(int64_t thread, int64_t start, int64_t end, int64_t event);
  // While nothing is open on `thread`, what counts is what `by` did.
  void hand(int64_t thread, int64_t by) { handed_by_[thread] = by; }
  void build();

  void charge(int64_t thread, int64_t from, int64_t until, Times& times) const;
  // The call that waits at an instant, the one that began last; kNull if there is none.
  int64_t waits_at(int64_t thread, int64_t at) const;
  int64_t inside(int64_t from, int64_t until) const;

 private:
  struct Span {
    int64_t start, end;
  };
  struct Spans {
    std::vector<Span> all;
    size_t merged = 0;
    void add(Span span);
    void merge();
  };
  struct Piece {  // until the next one
    int64_t start;
    size_t kind;
  };
  struct Wait {
    int64_t start, end, event, latest_end;  // the last: of this one and all before
  };
  struct Thread {
    std::array<Spans, kKinds> spans;
    std::vector<Piece> pieces;
    std::vector<Wait> waits;
    void build();
  };

  const Thread* find(int64_t thread) const;
  const Thread* giver(int64_t thread) const;
  static int64_t waits_at(const Thread& thread, int64_t at);
  static void charge(const Thread& thread, const Thread* giver, int64_t from, int64_t until, Times& times);

  std::vector<int64_t> window_starts_, window_ends_;
  std::unordered_map<int64_t, Thread> threads_;
  std::unordered_map<int64_t, int64_t> handed_by_;
};

// Amounts summed up by group, with the largest of each and the two events it belongs to. Nothing is no amount.
class Tally {
 public:
  explicit Tally(size_t groups)
      : count(groups), sum(groups), largest(groups), item(groups, kNull), other(groups, kNull), since_(groups) {}
  void add(size_t group, int64_t amount, int64_t since, int64_t of, int64_t and_of) {
    if (amount <= 0) return;
    ++count[group], sum[group] += amount;
    // Of equals the first, in whatever order they come.
    if (amount < largest[group] || (amount == largest[group] && since_[group] <= since)) return;
    largest[group] = amount, since_[group] = since, item[group] = of, other[group] = and_of;
  }

  std::vector<int64_t> count, sum, largest, item, other;

 private:
  std::vector<int64_t> since_;
};

// How many launches had been made on a device, at an instant, whose work had not begun.
class Queues {
 public:
  void add(int64_t device, int64_t launched, int64_t begun);
  void build();  // all launches are there
  int64_t depth(int64_t device, int64_t at) const;  // those before, not at, this instant

 private:
  struct Queue {
    std::vector<int64_t> launched, begun;
  };
  std::unordered_map<int64_t, Queue> queues_;
};

}  // namespace stepscope
