#include "coupled.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace stepscope {

namespace {

// Times beyond any clock are cut off, so that sums and differences fit.
constexpr int64_t kMost = int64_t{1} << 61;

int64_t plus(int64_t time, int64_t more) { return std::clamp(saturating_add(time, more), -kMost, kMost); }

}  // namespace

CoupledPlay::CoupledPlay(std::vector<int64_t> ranks, std::vector<int64_t> moves, std::vector<int64_t> targets, std::vector<Call> calls)
    : targets_(std::move(targets)), first_(1, 0), calls_(std::move(calls)), next_(calls_.size(), -1) {
  const auto known = static_cast<int64_t>(calls_.size());
  if (ranks.size() != moves.size() || ranks.size() != targets_.size()) throw std::invalid_argument("columns of different lengths");
  moves_.reserve(moves.size());
  for (size_t i = 0; i < moves.size(); ++i) {
    if (moves[i] < 0 || moves[i] >= kMoves) throw std::invalid_argument("no such move");
    const auto move = static_cast<Move>(moves[i]);
    const bool calling = move == Move::kArrive || move == Move::kWait || move == Move::kCut;
    if (calling && (targets_[i] < 0 || targets_[i] >= known)) throw std::invalid_argument("no such call");
    const auto rank = static_cast<int64_t>(first_.size()) - 1;
    if (ranks[i] < rank || ranks[i] > rank + 1 || (i == 0 && ranks[i] != 0)) throw std::invalid_argument("ranks are not in order");
    if (ranks[i] == rank + 1) first_.push_back(i);
    if (calling && calls_[static_cast<size_t>(targets_[i])].rank != ranks[i]) throw std::invalid_argument("a call of another rank");
    moves_.push_back(move);
  }
  if (!moves_.empty()) first_.push_back(moves_.size());
  for (size_t rank = 0; rank + 1 < first_.size(); ++rank) {
    mark_first_.push_back(marks_);
    for (size_t i = first_[rank]; i < first_[rank + 1]; ++i) marks_ += moves_[i] == Move::kMark;
  }
  int64_t collectives = 0;
  for (size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    if (call.previous < -1 || call.previous >= static_cast<int64_t>(i) || call.collective < -1 || call.collective >= known)
      throw std::invalid_argument("no such call before it, or no such collective");
    if (call.rank < 0 || call.rank >= static_cast<int64_t>(this->ranks())) throw std::invalid_argument("no such rank");
    if (call.previous >= 0) next_[static_cast<size_t>(call.previous)] = static_cast<int64_t>(i);
    collectives = std::max(collectives, call.collective + 1);
  }
  taking_first_.assign(static_cast<size_t>(collectives) + 1, 0);
  for (const Call& call : calls_)
    if (call.collective >= 0) ++taking_first_[static_cast<size_t>(call.collective) + 1];
  for (size_t i = 1; i < taking_first_.size(); ++i) taking_first_[i] += taking_first_[i - 1];
  taking_.resize(taking_first_.back());
  std::vector<size_t> place(taking_first_.begin(), taking_first_.end() - 1);
  for (size_t i = 0; i < calls_.size(); ++i)
    if (calls_[i].collective >= 0) taking_[place[static_cast<size_t>(calls_[i].collective)]++] = i;
}

// One play: where each rank is, and which calls are ready, have arrived and have ended.
class CoupledPlay::Running {
 public:
  Running(const CoupledPlay& all, const std::vector<int64_t>& starts, const int64_t* times, const int64_t* tails, bool waits)
      : all_(all), times_(times), tails_(tails), waits_(waits), now_(starts), cursor_(all.first_.begin(), all.first_.end() - 1),
        mark_(all.mark_first_), ready_(all.calls_.size(), kNull), arrival_(all.calls_.size(), kNull), end_(all.calls_.size(), kNull),
        missing_(all.taking_first_.size() - 1) {
    for (int64_t& time : now_) time = std::clamp(time, -kMost, kMost);
    for (size_t i = 0; i < missing_.size(); ++i) missing_[i] = all.taking_first_[i + 1] - all.taking_first_[i];
    out_.marks.assign(all.marks_, kNull);
    out_.last.assign(missing_.size(), -1);
    out_.wait.assign(missing_.size(), 0);
    out_.spread.assign(missing_.size(), 0);
    for (size_t rank = 0; rank < all.ranks(); ++rank) going_.push_back(rank);
  }

  Played run() {
    while (!going_.empty()) {
      const size_t rank = going_.back();
      going_.pop_back();
      advance(rank);
    }
    out_.finished = true;
    for (size_t rank = 0; rank < all_.ranks(); ++rank) out_.finished &= cursor_[rank] == all_.first_[rank + 1];
    return std::move(out_);
  }

 private:
  void advance(size_t rank) {
    for (; cursor_[rank] < all_.first_[rank + 1]; ++cursor_[rank]) {
      const size_t i = cursor_[rank];
      const auto call = static_cast<size_t>(all_.targets_[i]);
      switch (all_.moves_[i]) {
        case Move::kOwn: now_[rank] = plus(now_[rank], std::max<int64_t>(0, times_[i])); break;
        case Move::kMark: out_.marks[mark_[rank]++] = now_[rank]; break;
        case Move::kArrive:
          if (ready_[call] != kNull) break;  // a call arrives once
          ready_[call] = plus(now_[rank], std::max<int64_t>(0, times_[i]));
          arrive(call);
          break;
        case Move::kWait:
        case Move::kCut:
          if (end_[call] == kNull) return;  // it is woken when the call ends
          if (all_.moves_[i] == Move::kWait) {
            // Not before the last one arrived.
            const int64_t early = std::clamp<int64_t>(times_[i], 0, alone(call));
            now_[rank] = std::max(now_[rank], plus(end_[call], -early));
          } else if (end_[call] > now_[rank]) {
            const int64_t left = end_[call] - now_[rank], part = std::clamp<int64_t>(times_[i], 0, kMillion);
            now_[rank] += left / kMillion * part + left % kMillion * part / kMillion;
          }
          break;
      }
    }
  }

  // Lets a call that is ready begin once the one before it has ended; what ends by that may let others begin.
  void arrive(size_t first) {
    beginning_.push_back(first);
    while (!beginning_.empty()) {
      const size_t call = beginning_.back();
      beginning_.pop_back();
      const Call& told = all_.calls_[call];
      if (arrival_[call] != kNull || ready_[call] == kNull) continue;
      int64_t arrival = ready_[call];
      if (told.previous >= 0) {
        const int64_t before = end_[static_cast<size_t>(told.previous)];
        if (before == kNull) continue;
        arrival = std::max(arrival, plus(before, std::max<int64_t>(0, told.gap)));
      }
      arrival_[call] = arrival;
      if (told.collective >= 0 && --missing_[static_cast<size_t>(told.collective)] == 0) meet(static_cast<size_t>(told.collective));
      if (!is_coupled(call)) end(call, plus(arrival, alone(call)));
    }
  }

  bool is_coupled(size_t call) const { return waits_ && all_.calls_[call].collective >= 0 && tails_[call] != kNull; }

  int64_t alone(size_t call) const {
    const bool known = tails_[call] != kNull && all_.calls_[call].collective >= 0;
    return std::max<int64_t>(0, known ? tails_[call] : all_.calls_[call].dur);
  }

  // All have arrived.
  void meet(size_t collective) {
    const size_t *begin = all_.taking_.data() + all_.taking_first_[collective], *stop = all_.taking_.data() + all_.taking_first_[collective + 1];
    size_t last = *begin;
    int64_t first = arrival_[*begin];
    for (const size_t* call = begin; call < stop; ++call) {
      if (arrival_[*call] > arrival_[last]) last = *call;
      first = std::min(first, arrival_[*call]);
    }
    out_.last[collective] = static_cast<int64_t>(last);
    out_.spread[collective] = arrival_[last] - first;
    for (const size_t* call = begin; call < stop; ++call) {
      if (!is_coupled(*call)) continue;
      out_.wait[collective] = plus(out_.wait[collective], arrival_[last] - arrival_[*call]);
      end(*call, plus(arrival_[last], std::max<int64_t>(0, tails_[*call])));
    }
  }

  void end(size_t call, int64_t time) {
    if (end_[call] != kNull) return;
    end_[call] = time;
    if (all_.next_[call] >= 0) beginning_.push_back(static_cast<size_t>(all_.next_[call]));
    const auto rank = static_cast<size_t>(all_.calls_[call].rank);
    const size_t at = cursor_[rank];
    if (at < all_.first_[rank + 1] && (all_.moves_[at] == Move::kWait || all_.moves_[at] == Move::kCut) &&
        static_cast<size_t>(all_.targets_[at]) == call)
      going_.push_back(rank);
  }

  const CoupledPlay& all_;
  const int64_t *times_, *tails_;
  const bool waits_;
  std::vector<int64_t> now_;
  std::vector<size_t> cursor_, mark_;
  std::vector<int64_t> ready_, arrival_, end_;
  std::vector<size_t> missing_;
  std::vector<size_t> going_, beginning_;
  Played out_;
};

CoupledPlay::Played CoupledPlay::play(const std::vector<int64_t>& starts, const int64_t* times, const int64_t* tails, bool waits) const {
  if (starts.size() != ranks()) throw std::invalid_argument("not as many starts as ranks");
  return Running(*this, starts, times, tails, waits).run();
}

}  // namespace stepscope
