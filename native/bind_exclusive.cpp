#include <stdexcept>

#include "bindings.hpp"
#include "exclusive.hpp"

namespace stepscope {

namespace {

void push(ExclusiveSweep& self, const Ints& start, const Ints& dur, const Ints& key) {
  same_length(start, dur, key);
  nb::gil_scoped_release release;
  self.push(start.data(), dur.data(), key.data(), start.shape(0));
}

}  // namespace

void bind_exclusive(nb::module_& m) {
  nb::class_<ExclusiveSweep>(m, "ExclusiveSweep")
      .def("__init__", [](ExclusiveSweep* self, std::vector<int64_t> starts, std::vector<int64_t> ends, size_t keys) {
        if (starts.size() != ends.size()) throw std::invalid_argument("columns of different lengths");
        new (self) ExclusiveSweep(std::move(starts), std::move(ends), keys);
      }, nb::arg("window_starts"), nb::arg("window_ends"), nb::arg("keys"))
      .def("push", &push, nb::arg("start"), nb::arg("dur"), nb::arg("key"))
      .def("finish", &ExclusiveSweep::finish, nb::call_guard<nb::gil_scoped_release>())
      .def_ro("calls", &ExclusiveSweep::calls)
      .def_ro("total_ns", &ExclusiveSweep::total)
      .def_ro("exclusive_ns", &ExclusiveSweep::exclusive)
      .def_ro("covered_ns", &ExclusiveSweep::covered);
}

}  // namespace stepscope
