#include "batch.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace stepscope {

namespace {

// Rows that stay next to one another: the first one's place, and how many there are.
struct Stretch {
  uint32_t from, rows;
};

// How rows are moved to their order: stretch by stretch, or one by one where these are short.
struct Moves {
  const std::vector<uint32_t>& order;
  std::vector<Stretch> stretches;

  explicit Moves(const std::vector<uint32_t>& to) : order(to) {
    for (const uint32_t row : order) {
      if (stretches.empty() || row != stretches.back().from + stretches.back().rows) stretches.push_back({row, 0});
      ++stretches.back().rows;
    }
  }

  template <class T>
  void reorder(Column<T>& column) const {
    constexpr size_t kShort = 16;
    Column<T> moved(column.size());
    T* to = moved.data();
    if (stretches.size() * kShort > order.size())
      for (const uint32_t row : order) *to++ = column[row];
    else
      for (const Stretch& s : stretches) to = std::copy_n(column.data() + s.from, s.rows, to);
    column.swap(moved);
  }
};

// Orders rows by a number that is at least `least` in all of them, in passes over eleven of its bits: a row takes the same
// time however many there are. Rows with the same number keep their order.
void sort_by(const Column<int64_t>& numbers, int64_t least, uint64_t span, uint32_t* first, uint32_t* last) {
  constexpr unsigned kBits = 11;
  const auto rows = static_cast<size_t>(last - first);
  std::vector<std::pair<uint64_t, uint32_t>> keys(rows), sorted(rows);
  for (size_t i = 0; i < rows; ++i) keys[i] = {static_cast<uint64_t>(numbers[first[i]]) - static_cast<uint64_t>(least), first[i]};
  for (unsigned shift = 0; shift < 64 && span >> shift; shift += kBits) {
    std::array<uint32_t, 1 << kBits> places{};
    const auto digit = [shift](uint64_t key) { return key >> shift & ((1 << kBits) - 1); };
    for (const auto& [key, row] : keys) ++places[digit(key)];
    uint32_t reached = 0;
    for (uint32_t& place : places) reached += std::exchange(place, reached);
    for (const auto& one : keys) sorted[places[digit(one.first)]++] = one;
    keys.swap(sorted);
  }
  for (size_t i = 0; i < rows; ++i) first[i] = keys[i].second;
}

// Orders rows that come as nested slices end: what encloses others comes after them, and has to go before them. Other rows
// may be in any order after this.
template <class Before>
void enclosing_first(uint32_t* first, uint32_t* last, const Before& before) {
  struct Chain {
    uint32_t head, tail;  // places among the rows
  };
  const std::vector<uint32_t> rows(first, last);
  std::vector<uint32_t> next(rows.size());
  std::vector<Chain> chains;
  for (uint32_t i = 0; i < rows.size(); ++i) {
    Chain whole{i, i};
    bool alone = true;
    for (; !chains.empty() && before(rows[i], rows[chains.back().head]); chains.pop_back()) {
      const Chain inside = chains.back();
      next[inside.tail] = next[i];  // the ones inside that come after; the last of all has none, whatever stands there
      next[i] = inside.head;
      if (std::exchange(alone, false)) whole.tail = inside.tail;
    }
    chains.push_back(whole);
  }
  for (const Chain& chain : chains)
    for (uint32_t at = chain.head;; at = next[at]) {
      *first++ = rows[at];
      if (at == chain.tail) break;
    }
}

}  // namespace

// Orders the rows of one thread. They are mostly sorted; those of slices that are written as they end are not at all.
void Batch::sort_thread(uint32_t* first, uint32_t* last) const {
  const auto before = [this](uint32_t a, uint32_t b) {
    if (start[a] != start[b]) return start[a] < start[b];
    if (dur[a] != dur[b]) return dur[a] > dur[b];
    return event[a] < event[b];
  };
  if (std::is_sorted(first, last, before)) return;
  if (last - first < 256) return std::sort(first, last, before);
  enclosing_first(first, last, before);
  if (std::is_sorted(first, last, before)) return;
  const auto [least, most] = std::minmax_element(first, last, [this](uint32_t a, uint32_t b) { return start[a] < start[b]; });
  const int64_t from = start[*least];
  sort_by(start, from, static_cast<uint64_t>(start[*most]) - static_cast<uint64_t>(from), first, last);
  for (uint32_t* row = first; row < last;) {  // those that start together
    uint32_t* next = row + 1;
    while (next < last && start[*next] == start[*row]) ++next;
    if (next - row > 1) std::sort(row, next, before);
    row = next;
  }
}

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
  for (size_t t = 0; t < firsts.size(); ++t) sort_thread(order.data() + firsts[t], order.data() + ends[t]);
  const Moves moves(order);
  if (moves.stretches.size() <= 1) return;  // sorted already
  moves.reorder(event), moves.reorder(start), moves.reorder(dur);
  moves.reorder(thread), moves.reorder(name), moves.reorder(skeleton);
  for (auto& v : values) moves.reorder(v);
}

std::vector<int64_t> Batch::thread_bounds() const {
  std::vector<int64_t> bounds;
  for (size_t i = 0; i < rows(); ++i)
    if (i == 0 || thread[i] != thread[i - 1]) bounds.push_back(static_cast<int64_t>(i));
  bounds.push_back(static_cast<int64_t>(rows()));
  return bounds;
}

}  // namespace stepscope
