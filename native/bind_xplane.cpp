#include "bindings.hpp"
#include "xplane.hpp"

namespace stepscope {

namespace {

nb::bytes raw(const std::string& text) { return nb::bytes(text.data(), text.size()); }

nb::list planes_of(const XplaneReader& self) {
  nb::list out;
  for (const auto& plane : self.planes) {
    nb::list stats;
    for (const auto& [name, value] : plane.stats) stats.append(nb::make_tuple(raw(name), raw(value)));
    out.append(nb::make_tuple(raw(plane.name), stats));
  }
  return out;
}

nb::list damage_of(const XplaneReader& self) {
  nb::list out;
  for (const Damage& d : self.damage) out.append(nb::make_tuple(d.reason, d.count, d.bytes, d.offsets));
  return out;
}

void read(XplaneReader& self, const std::string& path, const nb::callable& taken) {
  nb::gil_scoped_release release;
  self.read(path, [&] {
    nb::gil_scoped_acquire acquire;
    taken();
  });
}

}  // namespace

void bind_xplane(nb::module_& m) {
  nb::class_<XplaneReader>(m, "XplaneReader")
      .def(nb::init<Reader&>(), nb::arg("events"), nb::keep_alive<1, 2>())
      .def("read", &read, nb::arg("path"), nb::arg("taken"))
      .def_prop_ro("planes", &planes_of)
      .def_prop_ro("damage", &damage_of)
      .def_prop_ro("host", [](const XplaneReader& self) { return raw(self.host); })
      .def_ro("base_ns", &XplaneReader::base_ns)
      .def_ro("bytes", &XplaneReader::bytes)
      .def_ro("derived", &XplaneReader::derived)
      .def_ro("asynchronous", &XplaneReader::asynchronous)
      .def_ro("steps", &XplaneReader::steps);
}

}  // namespace stepscope
