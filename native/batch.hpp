// Rows of one stored table, column by column, on their way from the reader to the writer.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "numbers.hpp"

namespace stepscope {

// A vector that does not clear what will be overwritten anyway.
template <class T>
struct Unset : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = Unset<U>;
  };
  template <class U>
  void construct(U* p) noexcept {
    ::new (static_cast<void*>(p)) U;
  }
  template <class U, class... Args>
  void construct(U* p, Args&&... args) {
    ::new (static_cast<void*>(p)) U(std::forward<Args>(args)...);
  }
};

template <class T>
using Column = std::vector<T, Unset<T>>;

struct Batch {
  int table = 0;
  size_t count = 0;
  Column<int64_t> event, start, dur;
  Column<int32_t> thread, name, skeleton;
  std::vector<Column<int64_t>> values;
  std::vector<int64_t*> numbers;  // start, dur and the values, while rows are added

  size_t rows() const { return count; }
  void make_room(size_t rows, size_t columns);
  void trim();  // cuts the columns to the rows that are there

  // Orders the rows by thread, then start, then the longer first, then their place in the file.
  void sort();

  // Where each thread's rows begin in a sorted batch, and its end.
  std::vector<int64_t> thread_bounds() const;

 private:
  void sort_thread(uint32_t* first, uint32_t* last) const;
};

}  // namespace stepscope
