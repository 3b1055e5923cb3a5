// What rows of other sources need before they are stored: their order, which are alike, sums by kind, and texts taken apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "batch.hpp"
#include "intern.hpp"

namespace stepscope {

// The order of rows by thread, then start, then the longest first; rows that are alike stay as they are.
// Empty if they are in this order already. NULL is the smallest number.
std::vector<int64_t> row_order(const int32_t* thread, const int64_t* start, const int64_t* length, size_t rows);

// How long each row took; false if some end before they start, or are not nearer than `far`.
bool durations(const int64_t* start, const int64_t* end, int64_t far, size_t rows, int64_t* out);

// Whether all numbers are at least and at most so much.
bool within(const int64_t* numbers, size_t rows, int64_t least, int64_t most);

// How many rows each group has, and the sum of what they have; groups are numbers from `first`. False if one is beyond the last.
bool sum_groups(const int32_t* group, const int64_t* amount, size_t rows, int32_t first, std::vector<int64_t>& counts,
                std::vector<int64_t>& sums);

// A column of Arrow: numbers of 8, 16, 32 or 64 bits, or bits; which of them are there; the first row.
struct BitsColumn {
  const uint8_t *values, *valid;
  size_t offset;
  int bits;
};

// For each row the number of those that are like it in all columns, and the first row of each number.
struct Distinct {
  Column<int32_t> number;
  std::vector<int64_t> first;
};
Distinct distinct_rows(const std::vector<BitsColumn>& columns, size_t rows);

// Texts like "name, key = 12, other = [3]": names and what is told, each distinct text once.
struct ToldTexts {
  // `numbers` and `texts` are keys with what is before and after them, as ", key = ".
  void add(const int32_t* offsets, const char* text, size_t rows, const std::vector<std::string>& numbers,
           const std::vector<std::string>& texts);

  Column<int32_t> name;                  // place in `names`
  Interner names;
  std::vector<Column<int64_t>> numbers;  // by key; the smallest number where it is not told
  std::vector<Column<int32_t>> told;     // by key: place in `told_texts`, or -1
  Interner told_texts;

 private:
  int32_t number_of(std::string_view text);

  std::vector<int32_t> next_;  // by a name's number, the one that followed it last: names mostly come in the same order
  size_t last_ = 0;
};

}  // namespace stepscope
