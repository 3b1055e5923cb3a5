#include "batch.hpp"

#include <algorithm>
#include <numeric>

namespace stepscope {

namespace {

// Rows that stay next to one another: the first one's place, and how many there are.
struct Stretch {
  uint32_t from, rows;
};

template <class T>
void reorder(Column<T>& column, const std::vector<Stretch>& stretches) {
  Column<T> moved(column.size());
  T* to = moved.data();
  for (const Stretch& s : stretches) to = std::copy_n(column.data() + s.from, s.rows, to);
  column.swap(moved);
}

}  // namespace

void Batch::make_room(size_t rows, size_t columns) {
  event.resize(rows), start.resize(rows), dur.resize(rows);
  thread.resize(rows), name.resize(rows), skeleton.resize(rows);
  values.resize(columns);
  numbers = {start.data(), dur.data()};
  for (auto& v : values) {
    v.resize(rows);
    numbers.push_back(v.data());
  }
}

void Batch::trim() { make_room(count, values.size()); }

// Rows come nearly sorted: usually it is enough to part them by thread, which keeps their order.
void Batch::sort() {
  const auto before = [this](uint32_t a, uint32_t b) {
    if (start[a] != start[b]) return start[a] < start[b];
    if (dur[a] != dur[b]) return dur[a] > dur[b];
    return event[a] < event[b];
  };
  const int32_t threads = rows() ? *std::max_element(thread.begin(), thread.end()) + 1 : 0;
  std::vector<uint32_t> counts(static_cast<size_t>(threads)), firsts(counts.size()), order(rows());
  for (const int32_t t : thread) ++counts[static_cast<size_t>(t)];
  // Who reads the rows of a thread reads those before them, too: the thread with the fewest comes first.
  std::vector<uint32_t> by_count(counts.size());
  std::iota(by_count.begin(), by_count.end(), 0);
  std::stable_sort(by_count.begin(), by_count.end(), [&counts](uint32_t a, uint32_t b) { return counts[a] < counts[b]; });
  uint32_t reached = 0;
  for (const uint32_t t : by_count) firsts[t] = reached, reached += counts[t];
  std::vector<uint32_t> ends = firsts;
  for (uint32_t i = 0; i < rows(); ++i) order[ends[static_cast<size_t>(thread[i])]++] = i;
  for (size_t t = 0; t < firsts.size(); ++t) {
    const auto first = order.begin() + firsts[t], last = order.begin() + ends[t];
    if (!std::is_sorted(first, last, before)) std::sort(first, last, before);
  }
  std::vector<Stretch> stretches;
  for (const uint32_t row : order) {
    if (stretches.empty() || row != stretches.back().from + stretches.back().rows) stretches.push_back({row, 0});
    ++stretches.back().rows;
  }
  if (stretches.size() <= 1) return;  // sorted already
  reorder(event, stretches), reorder(start, stretches), reorder(dur, stretches);
  reorder(thread, stretches), reorder(name, stretches), reorder(skeleton, stretches);
  for (auto& v : values) reorder(v, stretches);
}

std::vector<int64_t> Batch::thread_bounds() const {
  std::vector<int64_t> bounds;
  for (size_t i = 0; i < rows(); ++i)
    if (i == 0 || thread[i] != thread[i - 1]) bounds.push_back(static_cast<int64_t>(i));
  bounds.push_back(static_cast<int64_t>(rows()));
  return bounds;
}

}  // namespace stepscope
