#include "bindings.hpp"
#include "chakra.hpp"
#include "elements.hpp"

namespace stepscope {

namespace {

template <class Reader>
void feed(Reader& self, nb::bytes piece) {
  const std::string_view view{piece.c_str(), piece.size()};
  nb::gil_scoped_release release;
  self.feed(view);
}

template <class Reader>
nb::tuple take(Reader& self) {
  return nb::make_tuple(to_buffer(std::exchange(self.offsets, {0})), to_buffer(std::exchange(self.text, {})));
}

// What all readers of elements have.
template <class Reader>
nb::class_<Reader> bind(nb::module_& m, const char* name) {
  return nb::class_<Reader>(m, name)
      .def("feed", &feed<Reader>, nb::arg("piece"))
      .def("finish", &Reader::finish)
      .def("take", &take<Reader>)
      .def_ro("elements", &Reader::elements)
      .def_ro("read_bytes", &Reader::read_bytes)
      .def_ro("trouble", &Reader::trouble)
      .def_ro("trouble_at", &Reader::trouble_at);
}

}  // namespace

void bind_elements(nb::module_& m) {
  bind<ElementReader>(m, "ElementReader")
      .def(nb::init<std::string>(), nb::arg("key"))
      .def_ro("members", &ElementReader::members);
  bind<ChakraReader>(m, "ChakraReader")
      .def(nb::init<>())
      .def_ro("header", &ChakraReader::header)
      .def_ro("damaged", &ChakraReader::damaged);
}

}  // namespace stepscope
