#include "bindings.hpp"
#include "elements.hpp"

namespace stepscope {

void bind_elements(nb::module_& m) {
  nb::class_<ElementReader>(m, "ElementReader")
      .def(nb::init<std::string>(), nb::arg("key"))
      .def(
          "feed",
          [](ElementReader& self, nb::bytes piece) {
            const std::string_view view{piece.c_str(), piece.size()};
            nb::gil_scoped_release release;
            self.feed(view);
          },
          nb::arg("piece"))
      .def("finish", &ElementReader::finish)
      .def("take",
           [](ElementReader& self) {
             auto taken = nb::make_tuple(to_buffer(std::exchange(self.offsets, {0})), to_buffer(std::exchange(self.text, {})));
             return taken;
           })
      .def_ro("members", &ElementReader::members)
      .def_ro("elements", &ElementReader::elements)
      .def_ro("read_bytes", &ElementReader::read_bytes)
      .def_ro("trouble", &ElementReader::trouble)
      .def_ro("trouble_at", &ElementReader::trouble_at);
}

}  // namespace stepscope
