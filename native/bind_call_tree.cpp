#include "bindings.hpp"
#include "call_tree.hpp"

namespace stepscope {

namespace {

// The nodes by name of column: (values, validity bitmap or None).
nb::dict take(const CallTree& tree) {
  const auto& nodes = tree.nodes();
  const auto column = [&nodes](auto member) {
    std::vector<int64_t> values(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) values[i] = nodes[i].*member;
    auto bits = validity(values, kNull);
    return to_column(std::move(values), std::move(bits));
  };
  nb::dict out;
  out["parent"] = column(&CallTree::Node::parent);
  out["label"] = column(&CallTree::Node::label);
  out["depth"] = column(&CallTree::Node::depth);
  out["thread"] = column(&CallTree::Node::thread);
  out["calls"] = column(&CallTree::Node::calls);
  out["total_ns"] = column(&CallTree::Node::total);
  out["self_ns"] = column(&CallTree::Node::self);
  out["step_self_ns"] = column(&CallTree::Node::in_steps);
  out["starved_ns"] = column(&CallTree::Node::late);
  out["device_ns"] = column(&CallTree::Node::device);
  return out;
}

nb::tuple hand_over(CallTree& tree) {
  std::vector<int64_t> starts, ends;
  for (const auto& piece : tree.hand_over())
    for (int64_t i = 0; i < piece.times; ++i) starts.push_back(piece.start), ends.push_back(piece.end);
  return nb::make_tuple(to_buffer(std::move(starts)), to_buffer(std::move(ends)));
}

}  // namespace

void bind_call_tree(nb::module_& m) {
  nb::class_<CallTree>(m, "CallTree")
      .def(nb::init<>())
      .def("set_steps", [](CallTree& self, const Ints& starts, const Ints& ends) {
        same_length(starts, ends);
        self.set_steps(starts.data(), ends.data(), starts.shape(0));
      }, nb::arg("starts"), nb::arg("ends"))
      .def("begin_thread", [](CallTree& self, int32_t thread, const Ints& starts, const Ints& ends) {
        same_length(starts, ends);
        self.begin_thread(thread, starts.data(), ends.data(), starts.shape(0));
      }, nb::arg("thread"), nb::arg("late_starts"), nb::arg("late_ends"))
      .def("finish_thread", &CallTree::finish_thread)
      .def("hand_over", &hand_over)
      .def("take", &take);
  const auto over_nodes = [&m](const char* name, auto function, const char* values) {
    m.def(name, [function](const Ints& parent, const Ints& own) {
      same_length(parent, own);
      auto found = function(parent.data(), own.data(), own.shape(0));
      auto bits = validity(found, kNull);
      return to_column(std::move(found), std::move(bits));
    }, nb::arg("parent"), nb::arg(values));
  };
  over_nodes("inherited", &inherited, "own");
  over_nodes("recurring", &recurring, "label");
  over_nodes("subtree_sums", &subtree_sums, "own");
}

}  // namespace stepscope
