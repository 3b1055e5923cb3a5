// Ranks of a run played together: each goes through its own time, and all meet in their collectives.
#pragma once

#include <cstdint>
#include <vector>

#include "numbers.hpp"

namespace stepscope {

// What a rank does next.
enum class Move : int8_t {
  kOwn,     // takes its own time
  kArrive,  // makes a collective call; goes on
  kWait,    // goes on when the call has ended
  kCut,     // the same, and a step ends meanwhile: goes on after a part of the wait
  kMark,    // its time is asked for
};
constexpr int64_t kMoves = 5;
constexpr int64_t kMillion = 1'000'000;

// The moves of all ranks, those of one rank after another, and their calls.
class CoupledPlay {
 public:
  struct Call {
    int64_t rank;
    int64_t collective;  // -1 if no other rank is known to take part
    int64_t previous;    // the call before it on its stream; -1 without one
    int64_t gap;         // from the end of that one to its start, if it waited for that alone; else 0
    int64_t tail;        // from the last arrival to its end; kNull if it ended before the last arrived
    int64_t dur;         // from its own arrival to its end, as recorded
  };
  struct Played {
    bool finished;                          // no rank waits for ever
    std::vector<int64_t> marks;             // in the order of moves; kNull where none was reached
    std::vector<int64_t> last, wait, spread;  // by collective: the call that came last, what all waited for it, the longest wait
  };

  // `targets` are calls of moves, as their places; other moves have -1.
  CoupledPlay(std::vector<int64_t> ranks, std::vector<int64_t> moves, std::vector<int64_t> targets, std::vector<Call> calls);

  // `times`: of a move of own time how long it takes, of an arrival its delay, of a wait how long before the call's end it
  // is over, of a cut the part of the wait in millionths.
  // `tails` takes the place of each call's own.
  Played play(const std::vector<int64_t>& starts, const int64_t* times, const int64_t* tails, bool waits) const;

  size_t moves() const { return moves_.size(); }
  size_t calls() const { return calls_.size(); }
  size_t ranks() const { return first_.size() - 1; }

 private:
  class Running;

  std::vector<Move> moves_;
  std::vector<int64_t> targets_;
  std::vector<size_t> first_;  // the first move of each rank, and the end
  std::vector<Call> calls_;
  std::vector<int64_t> next_;                   // the call after it on its stream
  std::vector<size_t> taking_first_, taking_;  // the calls of each collective
  size_t marks_ = 0;
  std::vector<size_t> mark_first_;  // the first mark of each rank
};

}  // namespace stepscope
