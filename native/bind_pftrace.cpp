#include "bindings.hpp"
#include "pftrace.hpp"
#include "pftrace_writer.hpp"

namespace stepscope {

namespace {

void make_pftrace(PftraceReader* self, Reader& events, const std::string& folder, const std::string& left_out, const nb::dict& options) {
  PftraceSpec spec;
  spec.folder = folder;
  if (!left_out.empty()) append_quoted(spec.left_out, left_out);
  const auto set = [&](const char* name, size_t& to) {
    if (options.contains(name)) to = nb::cast<size_t>(options[name]);
  };
  set("memory_bytes", spec.memory_bytes);
  set("most_interned", spec.most_interned);
  set("most_open", spec.most_open);
  set("streams_after", spec.streams_after);
  new (self) PftraceReader(events, std::move(spec));
}

template <class Take>
void with_bytes(const nb::object& piece, Take&& take) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(piece.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
  try {
    nb::gil_scoped_release release;
    take(static_cast<const char*>(buffer.buf), static_cast<size_t>(buffer.len));
  } catch (...) {
    PyBuffer_Release(&buffer);
    throw;
  }
  PyBuffer_Release(&buffer);
}

void feed(PftraceReader& self, const nb::object& piece) {
  with_bytes(piece, [&](const char* bytes, size_t size) { self.feed(bytes, size); });
}

bool feed_packed(PftraceReader& self, const nb::object& piece) {
  bool sound = true;
  with_bytes(piece, [&](const char* bytes, size_t size) { sound = self.feed_packed(bytes, size); });
  return sound;
}

nb::bytes take_packed(PftraceReader& self) {
  const std::string packed = self.take_packed();
  return nb::bytes(packed.data(), packed.size());
}

nb::list damage_of(const PftraceReader& self) {
  nb::list out;
  for (const Damage& d : self.damage) out.append(nb::make_tuple(d.reason, d.count, d.bytes, d.offsets));
  return out;
}

// The distinct counters: device (None for none), name and unit.
nb::list counters_of(const PftraceReader& self) {
  nb::list out;
  for (const auto& counter : self.counters) {
    nb::object device = counter.device == kNull ? nb::none() : nb::cast(counter.device);
    out.append(nb::make_tuple(device, nb::bytes(counter.name.data(), counter.name.size()), nb::bytes(counter.unit.data(), counter.unit.size())));
  }
  return out;
}

nb::tuple take_readings(PftraceReader& self) {
  auto read = self.take_readings();
  return nb::make_tuple(to_buffer(std::move(read.counter)), to_buffer(std::move(read.time)), to_buffer(std::move(read.value)));
}

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Texts as the writer of events gives them, and for each its track, times, number, and the arrow it belongs to.
void add_events(PftraceWriter& self, const Bytes& text, const Ints& offsets, const std::vector<Ints>& columns) {
  if (columns.size() != 5) throw std::invalid_argument("track, start, dur, event and flow are needed");
  const size_t rows = columns[0].shape(0);
  for (const Ints& column : columns)
    if (column.shape(0) != rows) throw std::invalid_argument("columns of different lengths");
  if (offsets.shape(0) != rows + 1 || offsets.data()[rows] > static_cast<int64_t>(text.shape(0))) throw std::invalid_argument("texts of another length");
  const WrittenEvents events{rows, reinterpret_cast<const char*>(text.data()), offsets.data(), columns[0].data(), columns[1].data(),
                             columns[2].data(), columns[3].data(), columns[4].data()};
  nb::gil_scoped_release release;
  self.add(events);
}

nb::bytes next_packets(PftraceWriter& self) {
  std::string out;
  {
    nb::gil_scoped_release release;
    out = self.next();
  }
  return nb::bytes(out.data(), out.size());
}

nb::bytes write_readings(PftraceWriter& self, const Ints& descriptor, const Ints& counter, const Ints& time, const Ints& value) {
  same_length(descriptor, counter, time, value);
  const std::string out = self.readings(descriptor.data(), counter.data(), time.data(), value.data(), time.shape(0));
  return nb::bytes(out.data(), out.size());
}

}  // namespace

void bind_pftrace(nb::module_& m) {
  nb::class_<PftraceReader>(m, "PftraceReader")
      .def("__init__", &make_pftrace, nb::arg("events"), nb::arg("folder"), nb::arg("left_out"), nb::arg("options"), nb::keep_alive<1, 2>())
      .def("feed", &feed, nb::arg("piece"))
      .def("finish", &PftraceReader::finish, nb::arg("source_cut"), nb::call_guard<nb::gil_scoped_release>())
      .def("finish_some", &PftraceReader::finish_some, nb::arg("source_cut"), nb::call_guard<nb::gil_scoped_release>())
      .def("take_packed", &take_packed)
      .def("feed_packed", &feed_packed, nb::arg("piece"))
      .def("end_packed", &PftraceReader::end_packed, nb::arg("whole"))
      .def("take_readings", &take_readings)
      .def_prop_ro("waiting", &PftraceReader::waiting)
      .def_prop_ro("counters", &counters_of)
      .def_prop_ro("damage", &damage_of)
      .def_prop_ro("base_ns", &PftraceReader::base_ns)
      .def_prop_ro("gpus", [](const PftraceReader& self) {
        nb::list out;
        for (const std::string& name : self.gpus) out.append(nb::bytes(name.data(), name.size()));
        return out;
      })
      .def_ro("packets", &PftraceReader::packets)
      .def_ro("bytes", &PftraceReader::bytes)
      .def_ro("stages", &PftraceReader::stages)
      .def_ro("slices", &PftraceReader::slices)
      .def_ro("epoch_known", &PftraceReader::epoch_known)
      .def_ro("uncategorised", &PftraceReader::uncategorised);
  nb::class_<PftraceWriter>(m, "PftraceWriter")
      .def(nb::init<std::string, size_t, int64_t>(), nb::arg("folder"), nb::arg("memory_bytes"), nb::arg("base_ns"))
      .def("add", &add_events, nb::arg("text"), nb::arg("offsets"), nb::arg("columns"))
      .def("next", &next_packets)
      .def("readings", &write_readings, nb::arg("descriptor"), nb::arg("counter"), nb::arg("time"), nb::arg("value"))
      .def_static("uuid_of", &PftraceWriter::uuid_of, nb::arg("track"))
      .def_ro("slices", &PftraceWriter::slices)
      .def_ro("lanes", &PftraceWriter::lanes)
      .def_ro("odd", &PftraceWriter::odd);
}

}  // namespace stepscope
