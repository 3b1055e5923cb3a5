#include "bindings.hpp"

#include <algorithm>
#include <memory>
#include <stdexcept>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "reader.hpp"

namespace stepscope {

namespace {

using Columns = std::vector<std::tuple<std::string, bool, bool>>;

// A batch in Python's hands: its columns are given out once, as (values, validity bitmap or None).
struct PyBatch {
  std::unique_ptr<Batch> batch;
};

// The sorted columns, and for each thread in them: thread, first row, rows, first start.
nb::tuple take_columns(PyBatch& self) {
  Batch& b = *self.batch;
  std::vector<std::vector<uint8_t>> bits;
  {
    nb::gil_scoped_release release;
    b.trim();
    b.sort();
    bits.push_back(validity(b.event, kNull));
    bits.push_back(validity(b.thread, -1));
    bits.push_back(validity(b.name, -1));
    bits.push_back(validity(b.start, kNull));
    bits.push_back(validity(b.dur, kNull));
    bits.push_back(validity(b.skeleton, -1));
    for (const auto& v : b.values) bits.push_back(validity(v, kNull));
  }
  nb::list runs, out;
  const std::vector<int64_t> bounds = b.thread_bounds();
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    const auto first = static_cast<size_t>(bounds[i]);
    runs.append(nb::make_tuple(b.thread[first], bounds[i], bounds[i + 1] - bounds[i], b.start[first]));
  }
  size_t at = 0;
  const auto add = [&](auto& column) { out.append(to_column(std::move(column), std::move(bits[at++]))); };
  add(b.event), add(b.thread), add(b.name), add(b.start), add(b.dur), add(b.skeleton);
  for (auto& v : b.values) add(v);
  return nb::make_tuple(out, runs);
}

void make_reader(Reader* self, const std::vector<std::pair<std::string, Columns>>& tables,
                 std::unordered_map<std::string, int> by_kind, std::unordered_map<std::string, int> by_phase,
                 std::vector<std::string> metadata_keys, const nb::dict& options) {
  ReaderSpec spec;
  for (const auto& [name, columns] : tables) {
    TableSpec table{name, {}};
    for (const auto& [key, in_args, is_float] : columns) table.columns.push_back({key, in_args, is_float});
    if (table.columns.size() > kMaxColumns) throw std::invalid_argument("too many columns in one table");
    spec.tables.push_back(std::move(table));
  }
  if (spec.tables.empty()) throw std::invalid_argument("a reader needs a table");
  spec.by_kind = std::move(by_kind);
  spec.by_phase = std::move(by_phase);
  spec.metadata_keys = std::move(metadata_keys);
  const auto set = [&](const char* name, size_t& to) {
    if (options.contains(name)) to = nb::cast<size_t>(options[name]);
  };
  set("dictionary_bytes", spec.dictionary_bytes);
  set("most_texts", spec.most_texts);
  set("most_name_bytes", spec.most_name_bytes);
  set("most_skeleton_bytes", spec.most_skeleton_bytes);
  set("most_threads", spec.most_threads);
  set("batch_rows", spec.batch_rows);
  if (options.contains("most_apart_ns")) spec.most_apart_ns = nb::cast<int64_t>(options["most_apart_ns"]);
  if (options.contains("most_summed_ns")) spec.most_summed_ns = nb::cast<int64_t>(options["most_summed_ns"]);
  if (options.contains("from_day_before")) spec.from_day_before = nb::cast<bool>(options["from_day_before"]);
  if (options.contains("templates")) spec.templates = nb::cast<bool>(options["templates"]);
  if (options.contains("check_every")) spec.check_every = nb::cast<unsigned>(options["check_every"]);
  new (self) Reader(std::move(spec));
}

// Takes anything with a buffer: bytes, or a view of a buffer that is filled again afterwards.
void feed(Reader& self, const nb::object& piece) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(piece.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
  {
    nb::gil_scoped_release release;
    self.feed(static_cast<const char*>(buffer.buf), static_cast<size_t>(buffer.len));
  }
  PyBuffer_Release(&buffer);
}

std::vector<PyBatch> take_batches(Reader& self) {
  std::vector<PyBatch> out;
  for (auto& batch : self.take_batches()) out.push_back({std::move(batch)});
  return out;
}

nb::dict take_dictionary(Reader& self, bool last) {
  Dictionary d = self.take_dictionary(last);
  const auto texts = [](DrainedTexts& t) { return nb::make_tuple(to_buffer(std::move(t.offsets)), to_buffer(std::move(t.bytes))); };
  nb::dict out;
  out["first_name"] = d.first_name;
  out["names"] = texts(d.names);
  out["first_skeleton"] = d.first_skeleton;
  out["skeletons"] = texts(d.skeletons);
  out["small"] = d.small;
  out["phases"] = to_buffer(std::move(d.phases));
  out["categories"] = to_buffer(std::move(d.categories));
  out["tables"] = to_buffer(std::move(d.tables));
  out["events"] = to_buffer(std::move(d.events));
  out["total"] = to_buffer(std::move(d.total));
  return out;
}

nb::list damage_of(const Reader& self) {
  nb::list out;
  for (const Damage& d : self.damage) out.append(nb::make_tuple(d.reason, d.count, d.bytes, d.offsets));
  return out;
}

// Batches come and go all the time while a trace is read: what is freed stays with the process, instead of going to the
// system and coming back as pages to be cleared.
void keep_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 64 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
#endif
}

}  // namespace

void bind_reader(nb::module_& m) {
  m.def("keep_memory", &keep_memory);
  nb::class_<PyBatch>(m, "Batch")
      .def_prop_ro("table", [](const PyBatch& b) { return b.batch->table; })
      .def_prop_ro("rows", [](const PyBatch& b) { return b.batch->rows(); })
      .def("take", &take_columns);
  nb::class_<Reader>(m, "Reader")
      .def("__init__", &make_reader, nb::arg("tables"), nb::arg("by_kind"), nb::arg("by_phase"),
           nb::arg("metadata_keys"), nb::arg("options"))
      .def("feed", &feed, nb::arg("piece"))
      .def("finish", [](Reader& r, bool source_cut) {
        nb::gil_scoped_release release;
        r.finish(source_cut);
      }, nb::arg("source_cut"))
      .def("take_batches", &take_batches)
      .def("take_dictionary", &take_dictionary, nb::arg("last"))
      .def_prop_ro("dictionary_full", &Reader::dictionary_full)
      .def_prop_ro("damage", &damage_of)
      .def_ro("metadata", &Reader::metadata)
      .def_ro("threads", &Reader::threads)
      .def_ro("refusal", &Reader::refusal)
      .def_ro("saw_events", &Reader::saw_events)
      .def_ro("events", &Reader::events)
      .def_ro("bytes", &Reader::bytes)
      .def_ro("known_hits", &Reader::known_hits)
      .def_ro("template_hits", &Reader::template_hits)
      .def_ro("template_checks", &Reader::template_checks)
      .def_prop_ro("origin", &Reader::origin)
      .def_ro("template_mismatches", &Reader::template_mismatches);
}

}  // namespace stepscope
