// What the binding files share: columns as buffers, without copies.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace stepscope {

namespace nb = nanobind;

using Ints = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Shorts = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A column as a vector of its own.
inline std::vector<int64_t> copy(const Ints& column) { return {column.data(), column.data() + column.shape(0)}; }

// Refuses columns of one table that do not have as many rows as the first.
template <class First, class... Rest>
void same_length(const First& first, const Rest&... rest) {
  if (((rest.shape(0) != first.shape(0)) || ...)) throw std::invalid_argument("columns of different lengths");
}

// The bytes of a buffer, of which there are at least so many. They hold as long as the caller holds the object.
inline const void* held(const nb::object& object, size_t bytes) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
  const bool enough = static_cast<size_t>(buffer.len) >= bytes;
  const void* data = buffer.buf;
  PyBuffer_Release(&buffer);
  if (!enough) throw std::invalid_argument("a column shorter than it says");
  return data;
}

// A vector handed to Python as a memoryview that owns it.
template <class T, class Allocator>
nb::object to_buffer(std::vector<T, Allocator>&& column) {
  using Owned = std::vector<T, Allocator>;
  auto* owned = new Owned(std::move(column));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Owned*>(p); });
  // An empty vector may have no address; a view needs one.
  static T nothing{};
  T* data = owned->empty() ? &nothing : owned->data();
  return nb::cast(nb::ndarray<nb::memview, T, nb::ndim<1>>(data, {owned->size()}, owner));
}

// Which values are there, as Arrow's bitmap; empty if all are.
template <class Values, class T>
std::vector<uint8_t> validity(const Values& column, T null) {
  const auto nulls = static_cast<size_t>(std::count(column.begin(), column.end(), null));  // has no branch for each
  if (nulls == 0) return {};
  std::vector<uint8_t> bits((column.size() + 7) / 8);
  if (nulls == column.size()) return bits;
  for (size_t byte = 0; byte < bits.size(); ++byte) {
    unsigned there = 0;
    for (size_t i = 8 * byte, bit = 0; bit < 8 && i < column.size(); ++i, ++bit) there |= static_cast<unsigned>(column[i] != null) << bit;
    bits[byte] = static_cast<uint8_t>(there);
  }
  return bits;
}

// A column as (values, validity bitmap or None).
template <class Values>
nb::tuple to_column(Values&& values, std::vector<uint8_t>&& bits) {
  nb::object mask = bits.empty() ? nb::none() : to_buffer(std::move(bits));
  return nb::make_tuple(to_buffer(std::move(values)), mask);
}

void bind_packed(nb::module_& m);
void bind_plain_rows(nb::module_& m);
void bind_priority(nb::module_& m);
void bind_call_tree(nb::module_& m);
void bind_coupled(nb::module_& m);
void bind_elements(nb::module_& m);
void bind_exclusive(nb::module_& m);
void bind_idle(nb::module_& m);
void bind_path(nb::module_& m);
void bind_pickle(nb::module_& m);
void bind_pftrace(nb::module_& m);
void bind_reader(nb::module_& m);
void bind_simulation(nb::module_& m);
void bind_sqlite(nb::module_& m);
void bind_stacks(nb::module_& m);
void bind_stretches(nb::module_& m);
void bind_sweeps(nb::module_& m);
void bind_timeline(nb::module_& m);
void bind_writeback(nb::module_& m);
void bind_xplane(nb::module_& m);

}  // namespace stepscope
