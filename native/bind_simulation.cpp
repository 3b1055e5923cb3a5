#include "bindings.hpp"
#include "simulation.hpp"

namespace stepscope {

namespace {

int32_t narrow(int64_t value) { return value == kNull ? -1 : static_cast<int32_t>(value); }

// Times beyond any clock are cut off, so that differences fit.
int64_t instant(int64_t time) { return std::clamp(time, -(int64_t{1} << 61), int64_t{1} << 62); }

// No single event costs more to record.
constexpr int64_t kSecond = 1'000'000'000;

// No change makes anything more than a thousand times as long.
int64_t part_of(int64_t value) { return std::clamp<int64_t>(value, 0, 1000 * kWhole); }

void add_steps(Simulation& self, const Ints& thread, const Ints& host_start, const Ints& host_end, const Ints& start, const Ints& end) {
  same_length(thread, host_start, host_end, start, end);
  for (size_t i = 0; i < thread.shape(0); ++i)
    self.add_step({narrow(thread.data()[i]), {instant(host_start.data()[i]), instant(host_end.data()[i])},
                   {instant(start.data()[i]), instant(end.data()[i])}});
}

void scale_host(Simulation& self, const Ints& thread, const Ints& start, const Ints& dur, const Ints& part) {
  same_length(thread, start, dur, part);
  for (size_t i = 0; i < thread.shape(0); ++i) {
    const int64_t begin = instant(start.data()[i]), end = instant(saturating_add(begin, std::max<int64_t>(0, dur.data()[i])));
    if (begin < end) self.scale_host(narrow(thread.data()[i]), {begin, end}, part_of(part.data()[i]));
  }
}

void add_costs(PointCosts& self, const Ints& thread, const Ints& time, const Ints& cost, int64_t part) {
  same_length(thread, time, cost);
  const int64_t left_out = part_of(part);
  const int64_t *threads = thread.data(), *times = time.data(), *costs = cost.data();
  std::vector<int64_t> when, much;
  nb::gil_scoped_release release;
  // Rows of a thread come together, so that each is looked for once; those of one instant count as one.
  for (size_t first = 0, last = 0, rows = thread.shape(0); first < rows; first = last) {
    while (last < rows && threads[last] == threads[first]) ++last;
    when.clear(), much.clear();
    for (size_t i = first; i < last;) {
      const int64_t at = times[i];
      int64_t sum = 0;
      for (; i < last && times[i] == at; ++i) sum = saturating_add(sum, costs[i]);
      when.push_back(instant(at)), much.push_back(std::clamp<int64_t>(sum, 0, kSecond) * left_out / kWhole);
    }
    self.add(narrow(threads[first]), when.data(), much.data(), when.size());
  }
}

void scale_works(Simulation& self, const Ints& event, const Ints& part) {
  same_length(event, part);
  for (size_t i = 0; i < event.shape(0); ++i) self.scale_work(event.data()[i], part_of(part.data()[i]));
}

void run_beside(Simulation& self, const Ints& event) {
  for (size_t i = 0; i < event.shape(0); ++i) self.run_beside(event.data()[i]);
}

void let_return(Simulation& self, const Ints& event) {
  for (size_t i = 0; i < event.shape(0); ++i) self.let_return(event.data()[i]);
}

// Start and end of every step.
nb::tuple run(const Simulation& self, bool kept) {
  std::vector<int64_t> start, end;
  {
    nb::gil_scoped_release release;
    for (const auto& window : self.run(kept)) start.push_back(window.start), end.push_back(window.end);
  }
  return nb::make_tuple(to_column(std::move(start), {}), to_column(std::move(end), {}));
}

}  // namespace

void bind_simulation(nb::module_& m) {
  nb::class_<Simulation>(m, "Simulation")
      .def("__init__", [](Simulation* self, const Dependencies& graph, const std::unordered_map<int32_t, int>& roles, int32_t lead, int64_t unexplained, int64_t thread_wait, int64_t stands_still, int64_t host_part) {
        std::unordered_map<int32_t, Role> known;
        for (const auto& [thread, role] : roles) {
          if (role < 0 || role >= kRoles) throw std::invalid_argument("no such role");
          known.emplace(thread, static_cast<Role>(role));
        }
        new (self) Simulation(graph, std::move(known), lead, {unexplained, thread_wait, part_of(host_part), std::max<int64_t>(0, stands_still)});
      }, nb::arg("graph"), nb::arg("roles"), nb::arg("lead"), nb::arg("unexplained_ns"), nb::arg("thread_wait_ns"), nb::arg("stands_still_ns"), nb::arg("host_part"), nb::keep_alive<1, 2>())
      .def("add_steps", &add_steps, nb::arg("thread"), nb::arg("host_start"), nb::arg("host_end"), nb::arg("start"), nb::arg("end"))
      .def("scale_host", &scale_host, nb::arg("thread"), nb::arg("start"), nb::arg("dur"), nb::arg("part"))
      .def("spare", &Simulation::spare, nb::arg("costs"), nb::keep_alive<1, 2>())
      .def("scale_works", &scale_works, nb::arg("event"), nb::arg("part"))
      .def("run_beside", &run_beside, nb::arg("event"))
      .def("let_return", &let_return, nb::arg("event"))
      .def("build", &Simulation::build, nb::call_guard<nb::gil_scoped_release>())
      .def("run", &run, nb::arg("kept"));
  nb::class_<PointCosts>(m, "PointCosts")
      .def(nb::init<const Simulation&>(), nb::arg("simulation"))
      .def("add", &add_costs, nb::arg("thread"), nb::arg("time"), nb::arg("cost"), nb::arg("part"));
}

}  // namespace stepscope
