// Whose time it was when several pieces of work ran at once: each instant is split among those that ran.
#pragma once

#include <cstdint>
#include <vector>

#include "numbers.hpp"

namespace stepscope {

// Time of one device by key, inside windows; work comes in order of start.
class ExclusiveSweep {
 public:
  // Windows are disjoint and in order. Keys are 0 .. keys - 1; work with another number is not asked for, but it takes
  // its part of the time, and the others can say for how long it ran beside them.
  ExclusiveSweep(std::vector<int64_t> window_starts, std::vector<int64_t> window_ends, size_t keys);
  void push(const int64_t* start, const int64_t* dur, const int64_t* key, size_t rows);
  void finish();

  // By key: pieces of work that ran in a window, their time there, their part of it, and what of it was beside others.
  std::vector<int64_t> calls, total, exclusive, covered;

 private:
  struct Running {
    int64_t end, key;
    size_t order;     // by start
    int64_t shares;   // what one share of all time so far was worth when it began
    int64_t inside;   // how much of the windows had something running before it began
    int64_t covered;  // the same for work without a key
    bool in_window;
  };
  struct Place {
    int64_t key;
    bool ended;
  };

  void advance(int64_t now);
  void account(int64_t to);
  void end(const Running& work);
  bool counts(int64_t key) const { return key >= 0 && static_cast<size_t>(key) < calls.size(); }

  std::vector<int64_t> window_starts_, window_ends_;
  size_t window_ = 0;
  std::vector<Running> running_;  // a heap, the first to end on top
  std::vector<Place> order_;      // what runs in order of start, and what ended among it
  size_t first_ = 0, dropped_ = 0;  // the first of them that runs; how many were forgotten
  int64_t cursor_ = kNull, shares_ = 0, inside_ = 0, covered_ = 0;
  size_t covering_ = 0;  // how much of what runs has no key
};

}  // namespace stepscope
