#include "batch.hpp"

#include <algorithm>
#include <numeric>

namespace stepscope {

namespace {

template <class T>
void reorder(std::vector<T>& column, const std::vector<uint32_t>& order) {
  std::vector<T> moved(column.size());
  for (size_t i = 0; i < order.size(); ++i) moved[i] = column[order[i]];
  column.swap(moved);
}

}  // namespace

void Batch::reserve(size_t rows, size_t columns) {
  event.reserve(rows), start.reserve(rows), dur.reserve(rows);
  thread.reserve(rows), name.reserve(rows), shape.reserve(rows);
  values.resize(columns);
  for (auto& v : values) v.reserve(rows);
}

void Batch::sort() {
  const auto before = [this](uint32_t a, uint32_t b) {
    if (thread[a] != thread[b]) return thread[a] < thread[b];
    if (start[a] != start[b]) return start[a] < start[b];
    if (dur[a] != dur[b]) return dur[a] > dur[b];
    return event[a] < event[b];
  };
  std::vector<uint32_t> order(rows());
  std::iota(order.begin(), order.end(), 0u);
  if (std::is_sorted(order.begin(), order.end(), before)) return;
  std::sort(order.begin(), order.end(), before);
  reorder(event, order), reorder(start, order), reorder(dur, order);
  reorder(thread, order), reorder(name, order), reorder(shape, order);
  for (auto& v : values) reorder(v, order);
}

std::vector<int64_t> Batch::thread_bounds() const {
  std::vector<int64_t> bounds;
  for (size_t i = 0; i < rows(); ++i)
    if (i == 0 || thread[i] != thread[i - 1]) bounds.push_back(static_cast<int64_t>(i));
  bounds.push_back(static_cast<int64_t>(rows()));
  return bounds;
}

}  // namespace stepscope
