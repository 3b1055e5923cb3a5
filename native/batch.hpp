// Rows of one stored table, column by column, on their way from the reader to the writer.
#pragma once

#include <cstdint>
#include <vector>

#include "numbers.hpp"

namespace stepscope {

struct Batch {
  int table = 0;
  std::vector<int64_t> event, start, dur;
  std::vector<int32_t> thread, name, shape;
  std::vector<std::vector<int64_t>> values;

  size_t rows() const { return event.size(); }
  void reserve(size_t rows, size_t columns);

  // Orders the rows by thread, then start, then the longer first, then their place in the file.
  void sort();

  // Where each thread's rows begin in a sorted batch, and its end.
  std::vector<int64_t> thread_bounds() const;
};

}  // namespace stepscope
