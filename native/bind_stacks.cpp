#include "bindings.hpp"
#include "stacks.hpp"

namespace stepscope {

void bind_stacks(nb::module_& m) {
  nb::class_<StackReader>(m, "StackReader")
      .def(nb::init<bool>(), nb::arg("collapsed"))
      .def(
          "feed",
          [](StackReader& self, nb::bytes piece) {
            const std::string_view view{piece.c_str(), piece.size()};
            nb::gil_scoped_release release;
            self.feed(view);
          },
          nb::arg("piece"))
      .def("finish", &StackReader::finish)
      .def("take_samples",
           [](StackReader& self) {
             // A sample whose stack is still open keeps its row for the next time.
             const size_t whole = self.stack.size();
             nb::list columns;
             for (auto* column : {&self.process, &self.thread, &self.cpu, &self.time_ns, &self.weight, &self.command, &self.event,
                                  &self.stack}) {
               std::vector<int64_t> taken(column->begin(), column->begin() + static_cast<std::ptrdiff_t>(whole));
               column->erase(column->begin(), column->begin() + static_cast<std::ptrdiff_t>(whole));
               auto bits = validity(taken, StackReader::kNone);
               columns.append(to_column(std::move(taken), std::move(bits)));
             }
             return columns;
           })
      .def("take_stacks",
           [](StackReader& self) {
             return nb::make_tuple(to_buffer(std::exchange(self.stack_offsets, {0})), to_buffer(std::exchange(self.stack_frames, {})));
           })
      .def("texts",
           [](StackReader& self, const std::string& of) {
             NumberedTexts& texts = of == "frames" ? self.frames : of == "commands" ? self.commands : self.events;
             auto offsets = texts.offsets;
             auto text = texts.text;
             return nb::make_tuple(to_buffer(std::move(offsets)), to_buffer(std::move(text)));
           }, nb::arg("of"))
      .def_ro("samples", &StackReader::samples)
      .def_ro("odd_lines", &StackReader::odd_lines);
}

}  // namespace stepscope
