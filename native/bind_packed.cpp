#include "bindings.hpp"
#include "packed.hpp"

namespace stepscope {

namespace {

// Columns of Arrow as (values, validity or None, first row, bits of a value), each of so many rows.
nb::object packed(const std::vector<std::tuple<nb::object, nb::object, size_t, int>>& given, size_t rows) {
  std::vector<WholeNumbers> columns;
  for (const auto& [values, valid, offset, bits] : given) {
    if (bits != 32 && bits != 64) throw std::invalid_argument("no such width");
    const size_t end = offset + rows;
    columns.push_back({static_cast<const uint8_t*>(held(values, end * static_cast<size_t>(bits / 8))),
                       valid.is_none() ? nullptr : static_cast<const uint8_t*>(held(valid, (end + 7) / 8)), offset, bits});
  }
  Column<uint8_t> found;
  {
    nb::gil_scoped_release release;
    found = packed_columns(columns, rows);
  }
  return to_buffer(std::move(found));
}

template <class T>
nb::tuple column_of(const PackedColumn& column, size_t rows) {
  Column<T> out(rows);
  unpack(column, out);
  std::vector<uint8_t> there;
  if (column.head.nulls) there.assign(column.bytes + rows * column.head.width, column.bytes + column.head.size(rows));
  return to_column(std::move(out), std::move(there));
}

// Some of the packed columns, by their place and bits: (values, validity or None); the number that all rows have, or None if
// nothing is in it.
nb::list unpacked(const nb::object& content, size_t size, size_t columns, size_t rows, const std::vector<std::pair<size_t, int>>& wanted) {
  const auto found = find_packed(static_cast<const uint8_t*>(held(content, size)), size, columns, rows);
  nb::list out;
  for (const auto& [place, bits] : wanted) {
    const PackedColumn& column = found.at(place);
    const PackedHead& head = column.head;
    if (bits != 32 && bits != 64) throw std::invalid_argument("no such width");
    if (head.nothing) out.append(nb::none());
    else if (!head.width && !head.counts && !head.nulls) out.append(static_cast<int64_t>(head.high));
    else out.append(bits == 32 ? column_of<int32_t>(column, rows) : column_of<int64_t>(column, rows));
  }
  return out;
}

}  // namespace

void bind_packed(nb::module_& m) {
  m.def("packed", &packed, nb::arg("columns"), nb::arg("rows"));
  m.def("unpacked", &unpacked, nb::arg("content"), nb::arg("size"), nb::arg("columns"), nb::arg("rows"), nb::arg("wanted"));
}

}  // namespace stepscope
