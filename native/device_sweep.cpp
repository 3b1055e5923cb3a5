// What runs on a device at each instant: an event of it may begin before another has ended.
#include <algorithm>
#include <limits>

#include "sweep.hpp"

namespace stepscope {

namespace {

constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

}  // namespace

DeviceSweep::DeviceSweep(std::vector<int64_t> window_starts, std::vector<int64_t> window_ends)
    : window_starts_(std::move(window_starts)), window_ends_(std::move(window_ends)) {
  for (size_t i = 0; i < window_starts_.size(); ++i) windows += window_ends_[i] - window_starts_[i];
}

void DeviceSweep::push(const int64_t* start, const int64_t* dur, const int64_t* kind, const int64_t* weight, size_t rows) {
  const auto later = [](const Running& a, const Running& b) { return a.end > b.end; };
  for (size_t i = 0; i < rows; ++i) {
    if (start[i] == kNull || dur[i] == kNull || dur[i] <= 0) continue;
    advance(start[i]);
    const Running work{saturating_add(start[i], dur[i]), kind[i], weight[i] == kNull ? 0 : weight[i]};
    ++active_[work.kind];
    weight_ = saturating_add(weight_, work.weight);
    running_.push_back(work);
    std::push_heap(running_.begin(), running_.end(), later);
  }
}

void DeviceSweep::advance(int64_t now) {
  const auto later = [](const Running& a, const Running& b) { return a.end > b.end; };
  while (!running_.empty() && running_.front().end <= now) {
    const Running ended = running_.front();
    account(cursor_, ended.end);
    cursor_ = ended.end;
    --active_[ended.kind];
    weight_ -= ended.weight;
    std::pop_heap(running_.begin(), running_.end(), later);
    running_.pop_back();
  }
  if (!running_.empty()) account(cursor_, now);
  cursor_ = now;
}

void DeviceSweep::account(int64_t from, int64_t to) {
  while (window_ < window_ends_.size() && window_ends_[window_] <= from) ++window_;
  for (size_t w = window_; w < window_starts_.size() && window_starts_[w] < to; ++w) {
    const int64_t time = std::min(to, window_ends_[w]) - std::max(from, window_starts_[w]);
    if (time <= 0) continue;
    busy += time;
    for (size_t k = 0; k < kKinds; ++k)
      if (active_[k]) by_kind[k] += time;
    if (active_[0] || active_[1]) kernel += time;
    if (active_[0] && active_[1]) overlap += time;
    filled += static_cast<double>(time) * static_cast<double>(std::min(weight_, kFull)) / static_cast<double>(kFull);
  }
}

void DeviceSweep::finish() { advance(kForever); }

}  // namespace stepscope
