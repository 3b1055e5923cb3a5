// Every distinct path of calls on the host, with what was counted for it.
#pragma once

#include <cstdint>
#include <vector>

#include "numbers.hpp"

namespace stepscope {

// Stretches of time, sorted and apart, that the time of a thread is held against; several may lie on one another, then
// each counts.
class Stretches {
 public:
  struct Piece {
    int64_t start, end, times;
  };
  void set(const int64_t* starts, const int64_t* ends, size_t count);
  // Leaves what lies in others.
  void clip(const Stretches& others);
  void rewind() { at_ = 0, cursor_ = kNull; }
  // How much lies between where this was left and `to`; the pieces go to `found` if it is given.
  int64_t take(int64_t to, std::vector<Piece>* found = nullptr);
  int64_t cursor() const { return cursor_; }

 private:
  bool add_apart(const int64_t* starts, const int64_t* ends, size_t count);
  void lay_on_one_another(const int64_t* starts, const int64_t* ends, size_t count);

  std::vector<Piece> pieces_;
  size_t at_ = 0;
  int64_t cursor_ = kNull;
};

class CallTree {
 public:
  struct Node {
    int64_t parent, label;
    int32_t depth, thread;
    int64_t calls = 0, total = 0, self = 0, in_steps = 0, late = 0, device = 0;
  };

  // The limit bounds memory: paths beyond it count for the call around them.
  explicit CallTree(size_t limit = size_t{1} << 23);

  void set_steps(const int64_t* starts, const int64_t* ends, size_t steps) { steps_.set(starts, ends, steps); }
  // Begins a thread, whose time is held against the stretches in which a device waited for it: what of them lies in steps.
  void begin_thread(int32_t thread, const int64_t* late_starts, const int64_t* late_ends, size_t late);
  void finish_thread();
  // What of those stretches the thread spent with nothing open: it counts for another thread from now on.
  const std::vector<Stretches::Piece>& hand_over();

  int64_t root() const { return root_; }
  int64_t child(int64_t parent, int64_t label);
  void enter(int64_t node, int64_t dur);
  struct Charged {
    int64_t in_steps = 0, late = 0;
  };
  // Gives a stretch of time to a node; how much of it lies in steps, and in stretches in which a device waited.
  Charged charge(int64_t node, int64_t from, int64_t to);
  void launch(int64_t node, int64_t device_time) { nodes_[static_cast<size_t>(node)].device += device_time; }

  const std::vector<Node>& nodes() const { return nodes_; }

 private:
  void grow();
  size_t slot(int64_t parent, int64_t label) const;
  void unclaim(int64_t until);

  size_t limit_;
  std::vector<Node> nodes_;
  std::vector<int32_t> slots_;      // a hash table of nodes, -1 where free
  std::vector<int32_t> last_child_;  // the child found last: most calls come again at once
  int64_t root_ = 0;
  Stretches steps_, late_;
  std::vector<Stretches::Piece> unclaimed_;
};

// For each node the value of the nearest of itself and the paths around it that has one; parents come first.
std::vector<int64_t> inherited(const int64_t* parent, const int64_t* own, size_t nodes);

// For each node whether a path around it has the same label: 1 or 0.
std::vector<int64_t> recurring(const int64_t* parent, const int64_t* label, size_t nodes);

// For each node the sum of the values of itself and of all paths that begin with it.
std::vector<int64_t> subtree_sums(const int64_t* parent, const int64_t* own, size_t nodes);

}  // namespace stepscope
