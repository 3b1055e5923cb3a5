#include "exclusive.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace stepscope {

namespace {

constexpr auto kLater = [](const auto& a, const auto& b) { return a.end > b.end; };

}  // namespace

ExclusiveSweep::ExclusiveSweep(std::vector<int64_t> window_starts, std::vector<int64_t> window_ends, size_t keys)
    : calls(keys, 0), total(keys, 0), exclusive(keys, 0), covered(keys, 0),
      window_starts_(std::move(window_starts)), window_ends_(std::move(window_ends)) {}

void ExclusiveSweep::push(const int64_t* start, const int64_t* dur, const int64_t* key, size_t rows) {
  for (size_t i = 0; i < rows; ++i) {
    if (start[i] == kNull) continue;
    advance(start[i]);
    const bool in_window = window_ < window_starts_.size() && window_starts_[window_] <= start[i] && start[i] < window_ends_[window_];
    const int64_t end = dur[i] == kNull || dur[i] <= 0 ? start[i] : saturating_add(start[i], dur[i]);
    if (end == start[i]) {
      if (in_window && counts(key[i])) ++calls[static_cast<size_t>(key[i])];
      continue;
    }
    covering_ += !counts(key[i]);
    running_.push_back({end, key[i], dropped_ + order_.size(), shares_, inside_, covered_, in_window});
    std::push_heap(running_.begin(), running_.end(), kLater);
    order_.push_back({key[i], false});
  }
}

void ExclusiveSweep::advance(int64_t now) {
  while (!running_.empty() && running_.front().end <= now) {
    const Running ended = running_.front();
    account(ended.end);
    std::pop_heap(running_.begin(), running_.end(), kLater);
    running_.pop_back();
    end(ended);
  }
  account(now);
}

// Moves to an instant: the time inside windows until then is divided among what runs.
void ExclusiveSweep::account(int64_t to) {
  if (to <= cursor_) return;
  for (; window_ < window_starts_.size() && window_starts_[window_] < to; ++window_) {
    const int64_t time = std::min(to, window_ends_[window_]) - std::max(cursor_, window_starts_[window_]);
    if (time > 0 && !running_.empty()) {
      const auto running = static_cast<int64_t>(running_.size());
      inside_ += time;
      if (covering_ > 0) covered_ += time;
      shares_ += time / running;
      // What cannot be divided goes to the one that started first.
      const int64_t key = order_[first_].key;
      if (counts(key)) exclusive[static_cast<size_t>(key)] += time % running;
    }
    if (window_ends_[window_] > to) break;
  }
  cursor_ = to;
}

void ExclusiveSweep::end(const Running& work) {
  if (counts(work.key)) {
    const auto key = static_cast<size_t>(work.key);
    calls[key] += work.in_window || inside_ > work.inside;
    total[key] += inside_ - work.inside;
    exclusive[key] += shares_ - work.shares;
    covered[key] += covered_ - work.covered;
  } else {
    --covering_;
  }
  order_[work.order - dropped_].ended = true;
  while (first_ < order_.size() && order_[first_].ended) ++first_;
  if (first_ > 1024 && first_ * 2 > order_.size()) {
    order_.erase(order_.begin(), order_.begin() + static_cast<long>(first_));
    dropped_ += first_;
    first_ = 0;
  }
}

void ExclusiveSweep::finish() { advance(std::numeric_limits<int64_t>::max()); }

}  // namespace stepscope
