// The program that the trace pretends to have recorded: functions, call sites, op trees, kernels.
// It is drawn once from the seed and then run step after step, as a training loop is.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "names.hpp"

struct Rng {
    uint64_t state;

    uint64_t next() {
        state += 0x9E3779B97F4A7C15ull;
        uint64_t z = state;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    uint32_t below(uint32_t limit) { return static_cast<uint32_t>(((next() >> 32) * limit) >> 32); }
    template <typename Array> const auto& pick(const Array& array) {
        return array[below(static_cast<uint32_t>(array.size()))];
    }
};

struct Node {
    uint32_t name = 0, args = 0, kernel = 0, end = 0;  // end: the node after the last one below this one
    bool launches = false, allocates = false, sequenced = false, autograd_root = false;
    uint32_t busy_ns = 0, bytes = 0;
};

struct Site {
    uint32_t begin = 0, end = 0;
    int32_t backward = -1;
};

struct Call {
    uint32_t target;
    bool is_site;
    uint8_t chance;  // of 255, how often the branch is taken
};

struct Function {
    uint32_t name, self_ns;
    int32_t module_id = -1;
    std::vector<Call> body;
};

class Program {
  public:
    explicit Program(uint64_t seed) : rng_{seed} {
        for (auto functor : names::functors) add_elementwise(functor);
        for (auto kernel : names::kernels) kernel_names.emplace_back(kernel);
        for (auto tree : names::plain_trees)
            for (int copy = 0; copy < 12; ++copy) plain_sites.push_back(add_site(tree));
        for (int copy = 0; copy < 4; ++copy)
            for (auto tree : names::optimizer_trees) optimizer_sites.push_back(add_site(tree));
        item_site = add_site(names::item_tree);
        copy_site = add_site(names::copy_tree);
        pin_site = add_site(names::pin_tree);
        grad_site = add_site(names::grad_tree);
        nodes[sites[grad_site].begin].autograd_root = true;
        add_library();
        add_modules();
        add_loop();
    }

    std::vector<std::string> frame_names, op_names, op_args, kernel_names, kernel_args;
    std::vector<Function> functions;
    std::vector<Site> sites;
    std::vector<Node> nodes;
    std::vector<uint32_t> kernel_of;  // the kernel's name, by Node::kernel
    std::vector<uint32_t> plain_sites, optimizer_sites, modules, library;
    std::vector<uint32_t> main_stack, thread_stack;  // open for the whole recording
    uint32_t run_backward = 0, engine = 0, profiler_step = 0, optimizer = 0, loader = 0;
    uint32_t item_site = 0, copy_site = 0, pin_site = 0, grad_site = 0;

  private:
    using Ids = std::map<std::string, uint32_t>;

    static uint32_t intern(const std::string& text, Ids& ids, std::vector<std::string>& texts) {
        auto [place, fresh] = ids.try_emplace(text, static_cast<uint32_t>(texts.size()));
        if (fresh) texts.push_back(text);
        return place->second;
    }

    uint32_t frame(const std::string& text, uint32_t self_ns) {
        functions.push_back({intern(text, frame_ids_, frame_names), self_ns, -1, {}});
        return static_cast<uint32_t>(functions.size() - 1);
    }

    void add_elementwise(std::string_view functor) {
        std::string name(functor);
        kernel_names.push_back("void at::native::vectorized_elementwise_kernel<4, at::native::" + name +
                               ", std::array<char*, 2ul> >(int, at::native::" + name +
                               ", std::array<char*, 2ul>)");
        kernel_names.push_back("void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
                               "at::native::" + name + " >(at::TensorIteratorBase&, at::native::" + name +
                               " const&)::{lambda(int)#1}>(int, at::native::gpu_kernel_impl_nocast<at::native::" +
                               name + " >(at::TensorIteratorBase&, at::native::" + name +
                               " const&)::{lambda(int)#1})");
    }

    static std::string listing(const std::vector<uint32_t>& numbers) {
        std::string text = "[";
        for (size_t i = 0; i < numbers.size(); ++i) text += (i ? ", " : "") + std::to_string(numbers[i]);
        return text + "]";
    }

    static std::vector<uint32_t> strides(const std::vector<uint32_t>& shape) {
        std::vector<uint32_t> steps(shape.size());
        uint32_t step = 1;
        for (size_t i = shape.size(); i-- > 0; step *= shape[i]) steps[i] = step;
        return steps;
    }

    std::vector<uint32_t> draw_shape() {
        static constexpr std::array batches{1u, 8u, 24u, 64u, 96u, 256u, 512u, 1024u};
        std::vector<uint32_t> shape{rng_.pick(batches)};
        for (uint32_t more = rng_.below(3); more > 0; --more) shape.push_back(8 * (1 + rng_.below(96)));
        return shape;
    }

    // The four texts of an op's inputs, in Kineto's order, up to where "Ev Idx" follows.
    std::string input_text(const std::string& op, const std::vector<uint32_t>& shape) {
        uint32_t sum = 0;
        for (char letter : op) sum = sum * 31 + static_cast<unsigned char>(letter);
        uint32_t inputs = 1 + (sum >> 4) % 4;
        std::string concrete, types, steps, dims;
        for (uint32_t i = 0; i < inputs; ++i) {
            std::string comma = i ? ", " : "";
            bool tensor = i == 0 || (i == 1 && inputs != 3);
            bool vector = !tensor && i == 2;
            concrete += comma + (tensor ? "\"\"" : vector ? "\"" + listing(shape) + "\"" : "\"1\"");
            types += comma + (tensor ? "\"float\"" : vector ? "\"ScalarList\"" : "\"Scalar\"");
            steps += comma + (tensor ? listing(strides(shape)) : "[]");
            dims += comma + (tensor ? listing(shape) : "[]");
        }
        return "\"Concrete Inputs\": [" + concrete + "], \"Input type\": [" + types + "], \"Input Strides\": [" +
               steps + "], \"Input Dims\": [" + dims + "], ";
    }

    std::string launch_text() {
        uint32_t grid = 1 + rng_.below(2048), block = 32u << rng_.below(5);
        char text[400];
        double blocks = grid / 132.0, warps = blocks * block / 32.0;
        snprintf(text, sizeof text,
                 "      \"registers per thread\": %u,      \"shared memory\": %u,      \"blocks per SM\": %.6f,"
                 "      \"warps per SM\": %.6f,      \"grid\": [%u, 1, 1],      \"block\": [%u, 1, 1],"
                 "      \"est. achieved occupancy %%\": %u",
                 16 + 2 * rng_.below(100), 1024 * rng_.below(40), blocks, warps, grid, block,
                 std::min(100u, static_cast<uint32_t>(warps * 100 / 64)));
        return text;
    }

    Node new_node(const std::string& op, const std::vector<uint32_t>& shape) {
        Node node;
        node.name = intern(op, op_ids_, op_names);
        node.args = intern(input_text(op, shape), args_ids_, op_args);
        node.kernel = static_cast<uint32_t>(kernel_args.size());
        node.busy_ns = 1200 + rng_.below(1u << (8 + rng_.below(10)));
        node.bytes = 512;
        for (uint32_t extent : shape) node.bytes *= 1 + extent % 64;
        node.bytes = std::min(node.bytes, 1u << 30);
        return node;
    }

    // Reads "name!+(child,child)*" from text, in order, into nodes.
    void parse(std::string_view text, size_t& at, const std::vector<uint32_t>& shape) {
        size_t stop = text.find_first_of("(,)!+*", at);
        if (stop == std::string_view::npos) stop = text.size();
        size_t place = nodes.size();
        nodes.push_back(new_node(std::string(text.substr(at, stop - at)), shape));
        for (at = stop; at < text.size(); ++at) {
            if (text[at] == '!') nodes[place].sequenced = true;
            else if (text[at] == '+') nodes[place].allocates = true;
            else if (text[at] == '*') nodes[place].launches = true;
            else if (text[at] == '(') parse_siblings(text, ++at, shape);
            else break;
        }
        nodes[place].end = static_cast<uint32_t>(nodes.size());
        if (!nodes[place].launches) return;
        nodes[place].kernel = static_cast<uint32_t>(kernel_args.size());
        kernel_of.push_back(rng_.below(static_cast<uint32_t>(kernel_names.size())));
        kernel_args.push_back(launch_text());
    }

    void parse_siblings(std::string_view text, size_t& at, const std::vector<uint32_t>& shape) {
        for (parse(text, at, shape); at < text.size() && text[at] == ','; parse(text, at, shape)) ++at;
    }

    uint32_t add_site(std::string_view tree) {
        Site site;
        site.begin = static_cast<uint32_t>(nodes.size());
        size_t at = 0;
        parse_siblings(tree, at, draw_shape());
        site.end = static_cast<uint32_t>(nodes.size());
        sites.push_back(site);
        return static_cast<uint32_t>(sites.size() - 1);
    }

    uint32_t add_pattern(const names::Pattern& pattern) {
        uint32_t forward = add_site(pattern.forward);
        if (pattern.node.empty()) return forward;
        std::string node(pattern.node), below(pattern.backward);
        std::string tree = "autograd::engine::evaluate_function: " + node + "(" + node + "!";
        uint32_t backward = add_site(tree + (below.empty() ? ")" : "(" + below + "))"));
        nodes[sites[backward].begin].autograd_root = true;
        sites[forward].backward = static_cast<int32_t>(backward);
        return forward;
    }

    std::string draw_builtin() {
        if (rng_.below(3) == 0) return "<built-in function " + std::string(rng_.pick(names::functions)) + ">";
        char address[24];
        snprintf(address, sizeof address, "0x7ff%09llx", 16 * static_cast<unsigned long long>(rng_.below(1u << 31)));
        return "<built-in method " + std::string(rng_.pick(names::methods)) + " of " +
               std::string(rng_.pick(names::owners)) + " object at " + address + ">";
    }

    std::string draw_python() {
        return std::string(rng_.pick(names::packages)) + ".py(" + std::to_string(20 + rng_.below(2400)) +
               "): " + std::string(rng_.pick(names::verbs));
    }

    // Pure Python code in layers: a function calls functions of the layers below, most often leaves.
    void add_library() {
        std::vector<uint32_t> lower;
        for (int i = 0; i < 1100; ++i) lower.push_back(frame(draw_builtin(), 120 + rng_.below(500)));
        for (int i = 0; i < 500; ++i) lower.push_back(frame(draw_python(), 200 + rng_.below(900)));
        for (uint32_t size : {1200u, 600u, 300u, 160u}) {
            std::vector<uint32_t> layer;
            for (uint32_t i = 0; i < size; ++i) {
                uint32_t made = frame(draw_python(), 300 + rng_.below(1500));
                for (uint32_t calls = 2 + rng_.below(4); calls > 0; --calls)
                    functions[made].body.push_back({rng_.pick(lower), false, draw_chance()});
                layer.push_back(made);
            }
            lower.insert(lower.end(), layer.begin(), layer.end());
            if (size <= 300) library.insert(library.end(), layer.begin(), layer.end());
        }
    }

    uint8_t draw_chance() { return rng_.below(12) ? 255 : static_cast<uint8_t>(100 + rng_.below(150)); }

    void add_modules() {
        std::map<std::string_view, int32_t> counts;
        for (int i = 0; i < 160; ++i) {
            const auto& kind = rng_.pick(names::module_kinds);
            int32_t number = counts[kind.name]++;
            uint32_t builtin = frame(std::string(kind.builtin), 2500);
            uint32_t site = add_pattern(names::patterns[static_cast<size_t>(kind.pattern)]);
            functions[builtin].body.push_back({site, true, 255});
            uint32_t getter = frame("torch/nn/modules/module.py(1955): __getattr__", 350);
            uint32_t forward = frame(std::string(kind.file), 1800);
            functions[forward].body = {{getter, false, 255}, {getter, false, 255}, {builtin, false, 255}};
            if (rng_.below(3) == 0) functions[forward].body.push_back({draw_free_op(), false, 255});
            uint32_t state = frame("<built-in method _get_tracing_state of pybind11_builtins.pybind11_detail_"
                                   "function_record_v1_system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1 object at "
                                   "0x7ff571bb3890>", 300);
            uint32_t call = frame("torch/nn/modules/module.py(1783): _call_impl", 1500);
            functions[call].body = {{state, false, 255}, {forward, false, 255}};
            uint32_t module = frame("nn.Module: " + std::string(kind.name) + "_" + std::to_string(number), 900);
            functions[module].module_id = number;
            functions[module].body = {{call, false, 255}};
            modules.push_back(module);
        }
    }

    // A tensor method called straight from Python, with its op tree.
    uint32_t draw_free_op() {
        uint32_t builtin = frame(draw_builtin(), 1500);
        functions[builtin].body.push_back({add_pattern(rng_.pick(names::patterns)), true, 255});
        return builtin;
    }

    void add_loop() {
        for (const char* text : {"train.py(214): <module>", "metta/rl/train.py(96): main",
                                 "metta/rl/trainer.py(311): train", "metta/rl/trainer.py(420): _train_epoch"})
            main_stack.push_back(frame(text, 1000));
        for (const char* text : {"threading.py(1002): _bootstrap", "threading.py(1045): _bootstrap_inner",
                                 "threading.py(982): run"})
            thread_stack.push_back(frame(text, 1000));
        engine = frame("torch/autograd/graph.py(829): _engine_run_backward", 4000);
        run_backward = frame("<built-in method run_backward of torch._C._EngineBase object at 0x7ff4c0e1ab10>", 9000);
        profiler_step = frame("torch/profiler/profiler.py(991): step", 12000);
        optimizer = frame("torch/optim/optimizer.py(493): wrapper", 9000);
        loader = frame("torch/utils/data/dataloader.py(720): __next__", 5000);
    }

    Rng rng_;
    Ids frame_ids_, op_ids_, args_ids_;
};
