#include "bindings.hpp"
#include "stretches.hpp"

namespace stepscope {

namespace {

void add_eager(StretchFinder& self, const Ints& stream, const Ints& token, const Ints& event) {
  same_length(stream, token, event);
  nb::gil_scoped_release release;
  self.add_eager(stream.data(), token.data(), event.data(), stream.shape(0));
}

void add_replayed(StretchFinder& self, const Ints& launch, const Ints& token, const Ints& event) {
  same_length(launch, token, event);
  nb::gil_scoped_release release;
  self.add_replayed(launch.data(), token.data(), event.data(), launch.shape(0));
}

}  // namespace

void bind_stretches(nb::module_& m) {
  nb::class_<StretchFinder>(m, "StretchFinder")
      .def(nb::init<>())
      .def("add_eager", &add_eager, nb::arg("stream"), nb::arg("token"), nb::arg("event"))
      .def("add_replayed", &add_replayed, nb::arg("launch"), nb::arg("token"), nb::arg("event"))
      .def("find", &StretchFinder::find, nb::arg("least"), nb::arg("most"), nb::call_guard<nb::gil_scoped_release>())
      .def("take_replays", [](StretchFinder& self) {
        return nb::make_tuple(to_column(std::exchange(self.replayed, {}), {}), to_column(std::exchange(self.launch, {}), {}),
                              to_column(std::exchange(self.sequence_of, {}), {}), to_column(std::exchange(self.place_in, {}), {}));
      })
      .def("take_stretches", [](StretchFinder& self) {
        return nb::make_tuple(to_column(std::exchange(self.sequence, {}), {}), to_column(std::exchange(self.stretch, {}), {}),
                              to_column(std::exchange(self.place, {}), {}), to_column(std::exchange(self.event, {}), {}));
      });
}

}  // namespace stepscope
