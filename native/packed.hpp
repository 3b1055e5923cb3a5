// Columns of numbers in as few bytes as they need, while they wait: most of them go through a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "batch.hpp"

namespace stepscope {

// Numbers of 32 or 64 bits as Arrow has them, and which of them are there.
struct WholeNumbers {
  const uint8_t *values, *valid;
  size_t offset;
  int bits;
};

// How a column is kept: each number is `high`, in which all have the same bits, and what is kept of it in `width` bytes; or
// `high` and the number of its row, if the rows count. Behind the numbers is a bit for each row that is there, if some are not.
struct PackedHead {
  uint64_t high = 0;
  uint8_t width = 0, counts = 0, nulls = 0, nothing = 0;
  uint8_t unused[4] = {};

  size_t size(size_t rows) const { return rows * width + (nulls && !nothing ? (rows + 7) / 8 : 0); }
};

// Some columns of as many rows: their heads, then their numbers.
Column<uint8_t> packed_columns(const std::vector<WholeNumbers>& columns, size_t rows);

// The heads of so many columns and where the numbers of each are; throws if there are fewer bytes than these need.
struct PackedColumn {
  PackedHead head;
  const uint8_t* bytes;
};
std::vector<PackedColumn> find_packed(const uint8_t* bytes, size_t size, size_t columns, size_t rows);

// The numbers of a column again. T is int32_t or int64_t.
template <class T>
void unpack(const PackedColumn& column, Column<T>& out);

}  // namespace stepscope
