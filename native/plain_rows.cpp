#include "plain_rows.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "text.hpp"

namespace stepscope {

std::vector<int64_t> row_order(const int32_t* thread, const int64_t* start, const int64_t* length, size_t rows) {
  const auto before = [&](int64_t a, int64_t b) {
    if (thread[a] != thread[b]) return thread[a] < thread[b];
    if (start[a] != start[b]) return start[a] < start[b];
    return length[a] > length[b];
  };
  bool sorted = true;
  for (size_t i = 1; i < rows && sorted; ++i) sorted = !before(static_cast<int64_t>(i), static_cast<int64_t>(i - 1));
  if (sorted) return {};
  std::vector<int64_t> order(rows);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), before);
  return order;
}

bool durations(const int64_t* start, const int64_t* end, int64_t far, size_t rows, int64_t* out) {
  bool odd = false;
  for (size_t i = 0; i < rows; ++i) {
    out[i] = static_cast<int64_t>(static_cast<uint64_t>(end[i]) - static_cast<uint64_t>(start[i]));
    odd |= (start[i] <= -far) | (end[i] >= far) | (end[i] < start[i]);
  }
  return !odd;
}

bool within(const int64_t* numbers, size_t rows, int64_t least, int64_t most) {
  const auto from = static_cast<uint64_t>(least);
  bool outside = false;
  for (size_t i = 0; i < rows; ++i) outside |= static_cast<uint64_t>(numbers[i]) - from > static_cast<uint64_t>(most) - from;
  return !outside;
}

bool sum_groups(const int32_t* group, const int64_t* amount, size_t rows, int32_t first, std::vector<int64_t>& counts,
                std::vector<int64_t>& sums) {
  for (size_t i = 0; i < rows;) {
    const int32_t of = group[i];
    const size_t begin = i;
    uint64_t sum = 0;  // of those that follow one another, which are mostly of one group or each of another
    for (; i < rows && group[i] == of; ++i) sum += amount[i] == kNull ? 0 : static_cast<uint64_t>(amount[i]);
    const auto at = static_cast<uint64_t>(int64_t{of} - first);
    if (at >= counts.size()) return false;
    counts[at] += static_cast<int64_t>(i - begin);
    sums[at] = static_cast<int64_t>(static_cast<uint64_t>(sums[at]) + sum);
  }
  return true;
}

namespace {

constexpr size_t kBlock = 512;  // rows that are looked at together

bool bit_at(const uint8_t* bits, size_t at) { return bits[at >> 3] >> (at & 7) & 1; }

template <class T>
void widen(const BitsColumn& column, size_t from, size_t rows, uint64_t* to) {
  const uint8_t* at = column.values + (column.offset + from) * sizeof(T);
  for (size_t i = 0; i < rows; ++i) {
    T value;
    std::memcpy(&value, at + i * sizeof value, sizeof value);
    to[i] = value;
  }
}

// Some values of a column, 0 where there is none.
void load(const BitsColumn& column, size_t from, size_t rows, uint64_t* to) {
  switch (column.bits) {
    case 1:
      for (size_t i = 0; i < rows; ++i) to[i] = bit_at(column.values, column.offset + from + i);
      break;
    case 8: widen<uint8_t>(column, from, rows, to); break;
    case 16: widen<uint16_t>(column, from, rows, to); break;
    case 32: widen<uint32_t>(column, from, rows, to); break;
    default: widen<uint64_t>(column, from, rows, to);
  }
  for (size_t i = 0; column.valid && i < rows; ++i)
    if (!bit_at(column.valid, column.offset + from + i)) to[i] = 0;
}

// Numbers of rows by what is in them: a table with open addressing.
class RowNumbers {
 public:
  explicit RowNumbers(size_t columns) : columns_(columns) {}

  // The number of a row whose values stand `kBlock` apart; `fresh` if it is a new one.
  int32_t number(const uint64_t* values, uint64_t hash, bool& fresh) {
    for (size_t i = hash & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
      const Slot& slot = slots_[i];
      fresh = slot.number < 0;
      if (fresh) return add(values, hash, i);
      if (slot.hash == hash && same(values, static_cast<size_t>(slot.number))) return slot.number;
    }
  }

  bool same(const uint64_t* values, size_t number) const {
    for (size_t c = 0; c < columns_; ++c)
      if (values[c * kBlock] != known_[number * columns_ + c]) return false;
    return true;
  }

 private:
  struct Slot {
    uint64_t hash = 0;
    int32_t number = -1;
  };

  int32_t add(const uint64_t* values, uint64_t hash, size_t at) {
    const auto number = static_cast<int32_t>(count_++);
    for (size_t c = 0; c < columns_; ++c) known_.push_back(values[c * kBlock]);
    slots_[at] = {hash, number};
    if (count_ * 2 > slots_.size()) {
      const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.size() * 4));
      for (const Slot& slot : old) {
        size_t i = slot.hash & (slots_.size() - 1);
        while (slot.number >= 0 && slots_[i].number >= 0) i = (i + 1) & (slots_.size() - 1);
        if (slot.number >= 0) slots_[i] = slot;
      }
    }
    return number;
  }

  size_t columns_, count_ = 0;
  std::vector<Slot> slots_ = std::vector<Slot>(1024);
  std::vector<uint64_t> known_;
};

}  // namespace

namespace {

constexpr uint64_t kFewNumbers = 1 << 16;

// The same for one column of small numbers, as those of texts are: a place for each is quicker than a search.
bool distinct_numbers(const BitsColumn& column, size_t rows, Distinct& found) {
  std::vector<int32_t> known;
  std::array<uint64_t, kBlock> values;
  for (size_t from = 0; from < rows; from += kBlock) {
    const size_t here = std::min(kBlock, rows - from);
    load(column, from, here, values.data());
    const uint64_t most = *std::max_element(values.data(), values.data() + here);
    if (most >= kFewNumbers) return false;
    if (most >= known.size()) known.resize(most + 1, -1);
    for (size_t i = 0; i < here; ++i) {
      int32_t& number = known[values[i]];
      if (number < 0) {
        number = static_cast<int32_t>(found.first.size());
        found.first.push_back(static_cast<int64_t>(from + i));
      }
      found.number[from + i] = number;
    }
  }
  return true;
}

}  // namespace

Distinct distinct_rows(const std::vector<BitsColumn>& columns, size_t rows) {
  std::vector<BitsColumn> looked_at = columns;
  for (const BitsColumn& column : columns)
    if (column.valid) looked_at.push_back({column.valid, nullptr, column.offset, 1});
  Distinct found;
  found.number.resize(rows);
  if (looked_at.size() == 1 && distinct_numbers(looked_at[0], rows, found)) return found;
  found.first.clear();
  RowNumbers numbers(looked_at.size());
  std::vector<uint64_t> values(looked_at.size() * kBlock), hashes(kBlock);
  int32_t last = -1;
  for (size_t from = 0; from < rows; from += kBlock) {
    const size_t here = std::min(kBlock, rows - from);
    std::fill(hashes.begin(), hashes.end(), 0);
    for (size_t c = 0; c < looked_at.size(); ++c) {
      uint64_t* of_column = values.data() + c * kBlock;
      load(looked_at[c], from, here, of_column);
      for (size_t i = 0; i < here; ++i) {
        const uint64_t mixed = (hashes[i] ^ of_column[i]) * 0x9e3779b97f4a7c15u;
        hashes[i] = mixed ^ mixed >> 29;
      }
    }
    for (size_t i = 0; i < here; ++i) {
      const uint64_t* row = values.data() + i;
      bool fresh = false;
      if (last < 0 || !numbers.same(row, static_cast<size_t>(last))) last = numbers.number(row, hashes[i], fresh);
      if (fresh) found.first.push_back(static_cast<int64_t>(from + i));
      found.number[from + i] = last;
    }
  }
  return found;
}

namespace {

bool begins_with(std::string_view text, std::string_view key) {
  return text.size() >= key.size() && same_bytes(text.data(), key.data(), key.size());
}

// A whole number at the beginning of a text; false if there is none that fits. Up to `limit` anything may be read.
bool leading_number(std::string_view& text, const char* limit, int64_t& value) {
  static constexpr uint64_t kTens[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
  const bool negative = !text.empty() && text[0] == '-';
  const size_t first = negative ? 1 : 0;
  size_t at = first;
  uint64_t found = 0;
  for (size_t here = 8; here == 8 && at - first <= 18 && at < text.size(); at += here) {
    const char* from = text.data() + at;
    if (limit - from >= 8) {
      here = std::min<size_t>(leading_digits(load64(from)), text.size() - at);
      if (here) found = found * kTens[here] + eight_digits(load64(from) << (64 - 8 * here));
    } else {
      for (here = 0; at + here < text.size() && is_digit(from[here]); ++here) found = found * 10 + static_cast<uint64_t>(from[here] - '0');
    }
  }
  if (at == first || at - first > 18) return false;
  value = negative ? -static_cast<int64_t>(found) : static_cast<int64_t>(found);
  text.remove_prefix(at);
  return true;
}

// Brackets that belong together, at the beginning of a text; empty if there are none.
std::string_view leading_list(std::string_view text) {
  size_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[') ++depth;
    if (text[i] == ']' && depth && --depth == 0) return text.substr(0, i + 1);
    if (!depth) return {};
  }
  return {};
}

}  // namespace

int32_t ToldTexts::number_of(std::string_view text) {
  if (last_ >= next_.size()) next_.resize(last_ + 1, -1);
  int32_t& next = next_[last_];
  if (next < 0 || !same_text(names.texts()[static_cast<size_t>(next)], text)) next = names.intern(text);
  last_ = static_cast<size_t>(next);
  return next;
}

void ToldTexts::add(const int32_t* offsets, const char* text, size_t rows, const std::vector<std::string>& number_keys,
                    const std::vector<std::string>& text_keys) {
  const char* limit = text + (rows ? offsets[rows] : 0);
  numbers.assign(number_keys.size(), Column<int64_t>(rows));
  told.assign(text_keys.size(), Column<int32_t>(rows));
  name.resize(rows);
  size_t row = 0;
  // What is told at the beginning of a text; false if nothing is, and nothing was taken.
  const auto take_number = [&](std::string_view& rest) {
    for (size_t key = 0; key < number_keys.size(); ++key) {
      if (!begins_with(rest, number_keys[key])) continue;
      std::string_view after = rest.substr(number_keys[key].size());
      if (!leading_number(after, limit, numbers[key][row])) continue;
      rest = after;
      return true;
    }
    return false;
  };
  const auto take_list = [&](std::string_view& rest) {
    for (size_t key = 0; key < text_keys.size(); ++key) {
      if (!begins_with(rest, text_keys[key])) continue;
      const std::string_view list = leading_list(rest.substr(text_keys[key].size()));
      if (list.empty()) continue;
      told[key][row] = told_texts.intern(list);
      rest.remove_prefix(text_keys[key].size() + list.size());
      return true;
    }
    return false;
  };
  for (; row < rows; ++row) {
    const std::string_view whole(text + offsets[row], static_cast<size_t>(offsets[row + 1] - offsets[row]));
    for (auto& column : numbers) column[row] = kNull;
    for (auto& column : told) column[row] = -1;
    std::string_view rest;
    size_t cut = whole.find(',');
    for (; cut != std::string_view::npos; cut = whole.find(',', cut + 1)) {  // a name may have commas in it
      rest = whole.substr(cut);
      if (take_number(rest)) break;
      rest = {};
    }
    name[row] = number_of(whole.substr(0, cut));
    while (!rest.empty() && (take_number(rest) || take_list(rest))) {}
  }
}

}  // namespace stepscope
