#include "bindings.hpp"
#include "coupled.hpp"

namespace stepscope {

namespace {

void make(CoupledPlay* self, const Ints& ranks, const Ints& moves, const Ints& targets, const std::vector<Ints>& calls) {
  if (calls.size() != 6) throw std::invalid_argument("a call has six columns");
  const Ints &rank = calls[0], &collective = calls[1], &previous = calls[2], &gap = calls[3], &tail = calls[4], &dur = calls[5];
  same_length(rank, collective, previous, gap, tail, dur);
  std::vector<CoupledPlay::Call> told;
  told.reserve(rank.shape(0));
  for (size_t i = 0; i < rank.shape(0); ++i)
    told.push_back({rank.data()[i], collective.data()[i], previous.data()[i], gap.data()[i], tail.data()[i], dur.data()[i]});
  new (self) CoupledPlay(copy(ranks), copy(moves), copy(targets), std::move(told));
}

// Whether all came to their end; the marks; and by collective its last call, the summed and the longest wait.
nb::tuple play(const CoupledPlay& self, const Ints& starts, const Ints& times, const Ints& tails, bool waits) {
  if (times.shape(0) != self.moves() || tails.shape(0) != self.calls()) throw std::invalid_argument("columns of different lengths");
  CoupledPlay::Played played;
  {
    nb::gil_scoped_release release;
    played = self.play(copy(starts), times.data(), tails.data(), waits);
  }
  auto bits = validity(played.marks, kNull);
  return nb::make_tuple(played.finished, to_column(std::move(played.marks), std::move(bits)), to_buffer(std::move(played.last)),
                        to_buffer(std::move(played.wait)), to_buffer(std::move(played.spread)));
}

}  // namespace

void bind_coupled(nb::module_& m) {
  nb::class_<CoupledPlay>(m, "CoupledPlay")
      .def("__init__", &make, nb::arg("ranks"), nb::arg("moves"), nb::arg("targets"), nb::arg("calls"))
      .def("play", &play, nb::arg("starts"), nb::arg("times"), nb::arg("tails"), nb::arg("waits") = true);
}

}  // namespace stepscope
