#include "bindings.hpp"
#include "priority.hpp"
#include "repetition.hpp"

namespace stepscope {

namespace {

void push(PrioritySweep& self, const Ints& start, const Ints& dur, const Ints& label) {
  same_length(dur, start, label);
  nb::gil_scoped_release release;
  self.push(start.data(), dur.data(), label.data(), start.shape(0));
}

// First row, period, rows, and whether strange symbols stand before and after; None where nothing repeats.
nb::object repetition(const Ints& symbols, size_t least_period, double least_share) {
  std::optional<Repetition> found;
  {
    nb::gil_scoped_release release;
    found = find_repetition(symbols.data(), symbols.shape(0), least_period, least_share);
  }
  if (!found) return nb::none();
  return nb::make_tuple(found->first, found->period, found->rows, found->foreign_before, found->foreign_after);
}

// First row, period and rows of each.
nb::list loops(const Ints& symbols, size_t most_period, size_t least_times, size_t most) {
  std::vector<Repetition> found;
  {
    nb::gil_scoped_release release;
    found = find_loops(symbols.data(), symbols.shape(0), most_period, least_times, most);
  }
  nb::list listed;
  for (const Repetition& one : found) listed.append(nb::make_tuple(one.first, one.period, one.rows));
  return listed;
}

}  // namespace

void bind_priority(nb::module_& m) {
  m.def("find_repetition", &repetition, nb::arg("symbols"), nb::arg("least_period"), nb::arg("least_share"));
  m.def("find_loops", &loops, nb::arg("symbols"), nb::arg("most_period"), nb::arg("least_times"), nb::arg("most"));
  nb::class_<PrioritySweep>(m, "PrioritySweep")
      .def(nb::init<std::vector<int64_t>, std::vector<int64_t>, size_t>(), nb::arg("window_starts"), nb::arg("window_ends"), nb::arg("labels"))
      .def("push", &push, nb::arg("start"), nb::arg("dur"), nb::arg("label"))
      .def("finish", &PrioritySweep::finish)
      .def_prop_ro("by_window_ns", &PrioritySweep::by_window);
}

}  // namespace stepscope
