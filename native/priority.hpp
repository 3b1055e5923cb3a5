// Whose time it is when several claim it: each instant of a window goes to the smallest label that is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "numbers.hpp"

namespace stepscope {

// Intervals come in order of start, each with a label; windows are sorted and disjoint.
class PrioritySweep {
 public:
  static constexpr size_t kMostLabels = 64;

  PrioritySweep(std::vector<int64_t> window_starts, std::vector<int64_t> window_ends, size_t labels);
  // Throws, with nothing taken, on an unknown label or a start before the last one; rows without a time are passed over.
  void push(const int64_t* start, const int64_t* dur, const int64_t* label, size_t rows);
  void finish();

  // Per window: the time of each label, and after them the rest.
  std::vector<std::vector<int64_t>> by_window() const;

 private:
  struct Open {
    int64_t end;
    size_t label;
  };
  void check(const int64_t* start, const int64_t* label, size_t rows) const;
  void advance(int64_t now);
  void account(int64_t from, int64_t to);

  std::vector<int64_t> window_starts_, window_ends_, claimed_;  // claimed_: window by window, label by label
  size_t labels_, window_ = 0;
  std::vector<Open> open_;  // a heap, the first to end on top
  std::vector<size_t> count_;
  uint64_t present_ = 0;  // a bit for each label that has an open interval
  int64_t cursor_ = kNull;
};

}  // namespace stepscope
