#include "bindings.hpp"
#include "writeback.hpp"

#include <stdexcept>

namespace stepscope {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Columns = std::vector<std::tuple<std::string, bool, bool>>;

// The writer in Python's hands; the Arrow buffers of its texts are not copied but held.
struct PyEventWriter {
  EventWriter writer;
  std::vector<std::pair<Shorts, Bytes>> held;

  explicit PyEventWriter(std::vector<TableSpec> tables) : writer(std::move(tables)) {}
};

void make_writer(PyEventWriter* self, const std::vector<std::pair<std::string, Columns>>& tables,
                 std::vector<std::pair<std::string, std::string>> threads) {
  std::vector<TableSpec> specs;
  for (const auto& [name, columns] : tables) {
    TableSpec table{name, {}};
    for (const auto& [key, in_args, is_float] : columns) table.columns.push_back({key, in_args, is_float});
    specs.push_back(std::move(table));
  }
  new (self) PyEventWriter(std::move(specs));
  self->writer.threads = std::move(threads);
}

// Arrow's layout of texts: one more offset than texts, into the bytes of all.
void hold(PyEventWriter& self, TextPieces& texts, int64_t first, const Shorts& offsets, const Bytes& bytes) {
  const size_t rows = offsets.shape(0) ? offsets.shape(0) - 1 : 0;
  self.held.emplace_back(offsets, bytes);
  texts.add(first, offsets.data(), rows, reinterpret_cast<const char*>(bytes.data()), bytes.shape(0));
}

void add_names(PyEventWriter& self, int64_t first, const Shorts& offsets, const Bytes& bytes) {
  hold(self, self.writer.names, first, offsets, bytes);
}

void add_skeletons(PyEventWriter& self, int64_t first, const Shorts& offsets, const Bytes& bytes, const Shorts& tables) {
  self.writer.add_skeletons(first, {tables.data(), tables.data() + tables.shape(0)});
  hold(self, self.writer.skeletons, first, offsets, bytes);
}

// The texts as Arrow lays them out: bytes, and one more offset than events.
nb::tuple write(PyEventWriter& self, int table, const Ints& thread, const Ints& name, const Ints& start, const Ints& dur,
                const Ints& skeleton, const std::vector<Ints>& values) {
  EventColumns columns{table, skeleton.shape(0), thread.data(), name.data(), start.data(), dur.data(), skeleton.data(), {}};
  const auto check = [&](const Ints& column) {
    if (column.shape(0) != columns.rows) throw std::invalid_argument("columns of different lengths");
  };
  for (const Ints* column : {&thread, &name, &start, &dur}) check(*column);
  for (const Ints& column : values) check(column), columns.values.push_back(column.data());
  Written written;
  {
    nb::gil_scoped_release release;
    written = self.writer.write(columns);
  }
  return nb::make_tuple(nb::bytes(written.text.data(), written.text.size()), to_buffer(std::move(written.offsets)));
}

}  // namespace

void bind_writeback(nb::module_& m) {
  nb::class_<PyEventWriter>(m, "EventWriter")
      .def("__init__", &make_writer, nb::arg("tables"), nb::arg("threads"))
      .def("add_names", &add_names, nb::arg("first"), nb::arg("offsets"), nb::arg("text"))
      .def("add_skeletons", &add_skeletons, nb::arg("first"), nb::arg("offsets"), nb::arg("text"), nb::arg("tables"))
      .def("write", &write, nb::arg("table"), nb::arg("thread"), nb::arg("name"), nb::arg("start"), nb::arg("dur"),
           nb::arg("skeleton"), nb::arg("values"));
}

}  // namespace stepscope
