#include "bindings.hpp"
#include "sqlite_pages.hpp"

namespace stepscope {

namespace {

// Columns as (place in the record, "int64", "double" or "string", whether NULL means the row's number).
SqliteScan* new_scan(int descriptor, uint32_t root, const std::vector<std::tuple<size_t, std::string, bool>>& wanted) {
  std::vector<SqliteColumn> columns;
  for (const auto& [place, kind, is_rowid] : wanted) {
    SqliteColumn column{};
    column.kind = kind == "int64" ? SqliteKind::kInt : kind == "double" ? SqliteKind::kDouble : SqliteKind::kText;
    column.place = place;
    column.is_rowid = is_rowid;
    columns.push_back(std::move(column));
  }
  return new SqliteScan(descriptor, root, std::move(columns));
}

// Rows, and of each column its buffers as Arrow has them: validity or None, then values, or offsets and text.
nb::object next_batch(SqliteScan& self, size_t most) {
  size_t rows;
  {
    nb::gil_scoped_release release;
    rows = self.next(most);
  }
  nb::list columns;
  for (SqliteColumn& column : self.columns) {
    nb::object valid = column.nulls ? to_buffer(std::exchange(column.valid, {})) : nb::none();
    switch (column.kind) {
      case SqliteKind::kInt:
        columns.append(nb::make_tuple(valid, to_buffer(std::exchange(column.ints, {}))));
        break;
      case SqliteKind::kDouble:
        columns.append(nb::make_tuple(valid, to_buffer(std::exchange(column.doubles, {}))));
        break;
      case SqliteKind::kText:
        columns.append(nb::make_tuple(valid, to_buffer(std::exchange(column.offsets, {})), to_buffer(std::exchange(column.text, {}))));
        break;
    }
  }
  return nb::make_tuple(rows, columns);
}

nb::dict lost(const SqliteScan& self) {
  nb::dict told;
  told["pages"] = self.bad_pages;
  told["rows"] = self.bad_rows;
  told["odd_values"] = self.odd_values;
  told["cut_texts"] = self.cut_texts;
  return told;
}

}  // namespace

void bind_sqlite(nb::module_& m) {
  nb::class_<SqliteScan>(m, "SqliteScan")
      .def(nb::new_(&new_scan), nb::arg("descriptor"), nb::arg("root"), nb::arg("columns"))
      .def("next", &next_batch, nb::arg("most"))
      .def_prop_ro("lost", &lost)
      .def_prop_ro("refusal", [](const SqliteScan& self) { return self.file.refusal; })
      .def_prop_ro("encoding", [](const SqliteScan& self) { return self.file.encoding; })
      .def_prop_ro("page_size", [](const SqliteScan& self) { return self.file.page_size; })
      .def_prop_ro("pages", [](const SqliteScan& self) { return self.file.pages; });
}

}  // namespace stepscope
