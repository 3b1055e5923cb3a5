#include "priority.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

namespace stepscope {

namespace {

constexpr int64_t kLast = std::numeric_limits<int64_t>::max();

}  // namespace

PrioritySweep::PrioritySweep(std::vector<int64_t> window_starts, std::vector<int64_t> window_ends, size_t labels)
    : window_starts_(std::move(window_starts)), window_ends_(std::move(window_ends)), labels_(labels) {
  if (window_starts_.size() != window_ends_.size()) throw std::invalid_argument("columns of different lengths");
  if (labels_ == 0 || labels_ > kMostLabels) throw std::invalid_argument("between 1 and 64 labels");
  for (size_t i = 0; i < window_starts_.size(); ++i)
    if (window_ends_[i] < window_starts_[i] || (i && window_starts_[i] < window_ends_[i - 1]))
      throw std::invalid_argument("windows must be sorted and disjoint");
  claimed_.resize(window_starts_.size() * labels_);
  count_.resize(labels_);
}

void PrioritySweep::check(const int64_t* start, const int64_t* label, size_t rows) const {
  int64_t last = cursor_;
  for (size_t i = 0; i < rows; ++i) {
    if (label[i] < 0 || static_cast<uint64_t>(label[i]) >= labels_) throw std::invalid_argument("no such label");
    if (start[i] == kNull) continue;
    if (start[i] < last) throw std::invalid_argument("intervals must come in order of start");
    last = start[i];
  }
}

void PrioritySweep::push(const int64_t* start, const int64_t* dur, const int64_t* label, size_t rows) {
  check(start, label, rows);
  const auto later = [](const Open& a, const Open& b) { return a.end > b.end; };
  for (size_t i = 0; i < rows; ++i) {
    if (start[i] == kNull || dur[i] == kNull || dur[i] <= 0) continue;
    advance(start[i]);
    const Open opened{saturating_add(start[i], dur[i]), static_cast<size_t>(label[i])};
    if (count_[opened.label]++ == 0) present_ |= uint64_t{1} << opened.label;
    open_.push_back(opened);
    std::push_heap(open_.begin(), open_.end(), later);
  }
}

void PrioritySweep::advance(int64_t now) {
  const auto later = [](const Open& a, const Open& b) { return a.end > b.end; };
  while (!open_.empty() && open_.front().end <= now) {
    const Open ended = open_.front();
    account(cursor_, ended.end);
    cursor_ = ended.end;
    if (--count_[ended.label] == 0) present_ &= ~(uint64_t{1} << ended.label);
    std::pop_heap(open_.begin(), open_.end(), later);
    open_.pop_back();
  }
  if (!open_.empty()) account(cursor_, now);
  cursor_ = now;
}

void PrioritySweep::account(int64_t from, int64_t to) {
  while (window_ < window_ends_.size() && window_ends_[window_] <= from) ++window_;
  const auto owner = static_cast<size_t>(std::countr_zero(present_));
  for (size_t w = window_; w < window_starts_.size() && window_starts_[w] < to; ++w) {
    const int64_t time = std::min(to, window_ends_[w]) - std::max(from, window_starts_[w]);
    if (time > 0) claimed_[w * labels_ + owner] += time;
  }
}

void PrioritySweep::finish() { advance(kLast); }

std::vector<std::vector<int64_t>> PrioritySweep::by_window() const {
  std::vector<std::vector<int64_t>> out;
  for (size_t w = 0; w < window_starts_.size(); ++w) {
    const auto first = claimed_.begin() + static_cast<std::ptrdiff_t>(w * labels_);
    std::vector<int64_t> parts(first, first + static_cast<std::ptrdiff_t>(labels_));
    int64_t rest = window_ends_[w] - window_starts_[w];
    for (const int64_t part : parts) rest -= part;
    parts.push_back(rest);
    out.push_back(std::move(parts));
  }
  return out;
}

}  // namespace stepscope
