#include "bindings.hpp"
#include "pftrace.hpp"

namespace stepscope {

namespace {

void make_pftrace(PftraceReader* self, Reader& events, const std::string& folder, const nb::dict& options) {
  PftraceSpec spec;
  spec.folder = folder;
  const auto set = [&](const char* name, size_t& to) {
    if (options.contains(name)) to = nb::cast<size_t>(options[name]);
  };
  set("memory_bytes", spec.memory_bytes);
  set("most_interned", spec.most_interned);
  set("most_open", spec.most_open);
  new (self) PftraceReader(events, std::move(spec));
}

void feed(PftraceReader& self, const nb::object& piece) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(piece.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
  try {
    nb::gil_scoped_release release;
    self.feed(static_cast<const char*>(buffer.buf), static_cast<size_t>(buffer.len));
  } catch (...) {
    PyBuffer_Release(&buffer);
    throw;
  }
  PyBuffer_Release(&buffer);
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

}  // namespace

void bind_pftrace(nb::module_& m) {
  nb::class_<PftraceReader>(m, "PftraceReader")
      .def("__init__", &make_pftrace, nb::arg("events"), nb::arg("folder"), nb::arg("options"), nb::keep_alive<1, 2>())
      .def("feed", &feed, nb::arg("piece"))
      .def("finish", &PftraceReader::finish, nb::arg("source_cut"), nb::call_guard<nb::gil_scoped_release>())
      .def("take_readings", &take_readings)
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
}

}  // namespace stepscope
