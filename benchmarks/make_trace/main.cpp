// Writes a Kineto trace as torch 2.11 lays it out, of about the size asked for, to standard output.
// make_trace BYTES SEED BASE_LAST; on standard error one line per category: name, phase, events.
#include <unistd.h>

#include <charconv>
#include <concepts>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "simulation.hpp"

namespace {

constexpr int process_id = 829;
constexpr std::array thread_ids{829, 852, 861, 874, 875};
constexpr int stream = 7;

class Output {
  public:
    explicit Output(bool silent) : silent_{silent} { buffer_.resize(capacity + slack); }
    ~Output() { flush(); }
    Output(const Output&) = delete;
    Output& operator=(const Output&) = delete;

    Output& operator<<(std::string_view text) {
        if (used_ + text.size() > capacity) flush();
        memcpy(buffer_.data() + used_, text.data(), text.size());
        used_ += text.size();
        return *this;
    }
    template <typename Number> requires std::integral<Number> || std::floating_point<Number>
    Output& operator<<(Number number) {
        char* at = buffer_.data() + used_;
        used_ += static_cast<size_t>(std::to_chars(at, at + 32, number).ptr - at);
        return *this;
    }
    // Microseconds with three decimals, as Kineto prints every time.
    Output& time(int64_t ns) {
        *this << ns / 1000;
        char* at = buffer_.data() + used_;
        int64_t rest = ns % 1000;
        at[0] = '.';
        at[1] = static_cast<char>('0' + rest / 100);
        at[2] = static_cast<char>('0' + rest / 10 % 10);
        at[3] = static_cast<char>('0' + rest % 10);
        used_ += 4;
        return *this;
    }
    size_t written() const { return flushed_ + used_; }

  private:
    static constexpr size_t capacity = 1 << 20, slack = 4096;

    void flush() {
        for (size_t done = 0; !silent_ && done < used_;) {
            ssize_t count = write(STDOUT_FILENO, buffer_.data() + done, used_ - done);
            if (count <= 0) exit(1);
            done += static_cast<size_t>(count);
        }
        flushed_ += used_;
        used_ = 0;
    }

    bool silent_;
    std::vector<char> buffer_;
    size_t used_ = 0, flushed_ = 0;
};

struct Counts {
    std::map<std::pair<std::string, char>, uint64_t> events;
    uint64_t& of(const char* category, char phase) { return events[{category, phase}]; }
};

std::string heading(const char* category, const std::string& name) {
    std::string text = "  {\n    \"ph\": \"X\", \"cat\": \"";
    return text + category + "\", \"name\": \"" + name + "\", \"pid\": ";
}

class Writer {
  public:
    Writer(const Program& program, uint64_t seed, uint32_t ops_per_step, uint32_t steps, bool silent)
        : program_{program}, seed_{seed}, ops_per_step_{ops_per_step}, steps_{steps}, out_{silent} {
        for (const auto& name : program.frame_names) frame_heads_.push_back(heading("python_function", name));
        for (const auto& name : program.op_names) op_heads_.push_back(heading("cpu_op", name));
        for (const auto& name : program.kernel_names) kernel_heads_.push_back(heading("kernel", name));
        for (const auto& call : runtime_calls)
            call_heads_.push_back(heading(strncmp(call.name, "cuda", 4) ? "cuda_driver" : "cuda_runtime", call.name));
    }

    Counts counts;

    size_t write_all(bool base_last) {
        each_step([](const Simulation&) {});  // only to learn when the recording ends
        header(base_last);
        for (Thread thread : {autograd_thread, pin_thread, main_thread}) {
            each_step([&](const Simulation& now) {
                for (const auto& op : now.ops[thread]) write_op(op, thread, now.step);
            });
            each_step([&](const Simulation& now) {
                for (const auto& change : now.memory[thread]) write_memory(change, thread);
            });
        }
        write_roots();
        each_step([&](const Simulation& now) {
            for (const auto& frame : now.frames) write_frame(frame);
        });
        each_step([&](const Simulation& now) {
            for (const auto& launch : now.launches) write_launch(launch);
        });
        each_step([&](const Simulation& now) {
            for (const auto& span : now.device_spans) write_span(span, now.step);
        });
        footer(base_last);
        return out_.written();
    }

  private:
    template <typename Visit> void each_step(Visit visit) {
        Simulation simulation(program_, seed_, ops_per_step_);
        for (uint32_t i = 0; i < steps_; ++i) {
            simulation.run_step();
            visit(simulation);
        }
        end_ = simulation.clock + 80'000;
    }

    void header(bool base_last) {
        out_ << "\n  {\n    \"schemaVersion\": 1,\n    \"deviceProperties\": [\n    {\n"
                "      \"id\": 0, \"name\": \"NVIDIA H200\", \"totalGlobalMem\": 150109880320,\n"
                "      \"computeMajor\": 9, \"computeMinor\": 0,\n"
                "      \"maxThreadsPerBlock\": 1024, \"maxThreadsPerMultiprocessor\": 2048,\n"
                "      \"regsPerBlock\": 65536, \"warpSize\": 32,\n"
                "      \"sharedMemPerBlock\": 49152, \"numSms\": 132\n"
                "    , \"regsPerMultiprocessor\": 65536, \"sharedMemPerBlockOptin\": 232448, "
                "\"sharedMemPerMultiprocessor\": 233472\n    }\n    ],\n"
                "      \"trace_id\": \"9F701D1670B34EA69D28EBA59794B65F\",\n      \"with_stack\": 1,\n"
                "      \"profile_memory\": 1,\n      \"cuda_driver_version\": 13000,\n      \"record_shapes\": 1,\n"
                "      \"with_flops\": 1,\n      \"cuda_runtime_version\": 13000,\n      \"cupti_version\": 130001,\n"
                "  \"displayTimeUnit\": \"ms\",\n";
        if (!base_last) out_ << "  \"baseTimeNanoseconds\": 1790857026000000000,\n";
        out_ << "  \"traceEvents\": [\n";
    }

    Output& write_times(int64_t start, int64_t dur) {
        out_ << ",\n    \"ts\": ";
        out_.time(start) << ", \"dur\": ";
        return out_.time(dur) << ",\n    \"args\": {\n      ";
    }

    void write_op(const OpRecord& op, Thread thread, uint32_t step) {
        if (op.annotation) return write_mark(op, step);
        const Node& node = program_.nodes[op.node];
        out_ << op_heads_[node.name] << process_id << ", \"tid\": " << thread_ids[thread];
        write_times(op.start, op.dur) << "\"External id\": " << op.external_id << ",";
        bool root = node.autograd_root;
        if (root) out_ << "\"Record function id\": 0, ";
        if (op.sequence) {
            out_ << "\"Sequence number\": " << op.sequence << ", \"Fwd thread id\": "
                 << (thread == autograd_thread ? 1 : 0) << ", ";
        }
        if (!root) out_ << "\"Record function id\": 0, " << program_.op_args[node.args];
        out_ << "\"Ev Idx\": " << event_index_++ << "\n    }\n  },\n";
        ++op_count_;
        if (op.flow) write_flow("fwdbwd", op.flow, thread_ids[thread], op.start, thread != autograd_thread);
    }

    void write_mark(const OpRecord& mark, uint32_t step) {
        out_ << "  {\n    \"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"" << annotations[mark.node];
        if (mark.node == 0) out_ << step;
        out_ << "\", \"pid\": " << process_id << ", \"tid\": " << process_id;
        write_times(mark.start, mark.dur) << "\"External id\": " << mark.external_id
            << ",\"Record function id\": 0, \"Ev Idx\": " << event_index_++ << "\n    }\n  },\n";
        ++counts.of("user_annotation", 'X');
    }

    void write_flow(const char* category, uint32_t id, int thread, int64_t ts, bool starts,
                    int process = process_id) {
        out_ << "  {\n    \"ph\": \"" << (starts ? "s" : "f") << "\", \"id\": " << id << ", \"pid\": " << process
             << ", \"tid\": " << thread << ", \"ts\": ";
        out_.time(ts) << ",\n    \"cat\": \"" << category << "\", \"name\": \"" << category << "\""
                      << (starts ? "" : ", \"bp\": \"e\"") << "\n  },\n";
        ++flows_[category[0] == 'a'][starts];
    }

    void write_memory(const MemoryRecord& at, Thread thread) {
        out_ << "  {\n    \"ph\": \"i\", \"cat\": \"cpu_instant_event\", \"s\": \"t\", \"name\": \"[memory]\",\n"
                "    \"pid\": " << process_id << ", \"tid\": " << thread_ids[thread] << ",\n    \"ts\": ";
        out_.time(at.start) << ",\n    \"args\": {\n      \"Total Reserved\": 174063616000, \"Total Allocated\": "
            << at.total << ", \"Bytes\": " << at.bytes << ", \"Device Id\": 0, \"Device Type\": 1, \"Addr\": "
            << at.address << ", \"finished\": false, \"Ev Idx\": " << event_index_++ << "\n    }\n  },\n";
        ++counts.of("cpu_instant_event", 'i');
    }

    void write_roots() {
        Simulation simulation(program_, seed_, ops_per_step_);
        for (FrameRecord frame : simulation.roots) {
            frame.dur = end_ - frame.start;
            write_frame(frame);
        }
    }

    void write_frame(const FrameRecord& frame) {
        const Function& function = program_.functions[frame.function];
        out_ << frame_heads_[function.name] << process_id << ", \"tid\": " << thread_ids[frame.thread];
        write_times(frame.start, frame.dur) << "\"Python parent id\": ";
        if (frame.parent) out_ << frame.parent;
        else out_ << "null";
        out_ << ", \"Python id\": " << frame.id;
        if (function.module_id >= 0) out_ << ", \"Python module id\": " << function.module_id;
        out_ << ", \"Ev Idx\": " << event_index_++ << "\n    }\n  },\n";
        ++frame_count_;
    }

    void write_launch(const LaunchRecord& launch) {
        bool works = launch.work_dur > 0;
        if (works && launch.device_first) write_work(launch);
        int thread = thread_ids[launch.thread];
        out_ << call_heads_[launch.call] << process_id << ", \"tid\": " << thread;
        write_times(launch.start, launch.dur);
        if (launch.external_id) out_ << "\"External id\": " << launch.external_id << ",";
        out_ << "      \"cbid\": " << runtime_calls[launch.call].cbid << ", \"correlation\": " << launch.correlation
             << "\n    }\n  },\n";
        ++counts.of(launch.call == 1 ? "cuda_driver" : "cuda_runtime", 'X');
        write_flow("ac2g", launch.correlation, thread, launch.start, launch.work != Work::none);
        if (works && !launch.device_first) write_work(launch);
        if (++launch_count_ % 5000 == 0) write_overhead(launch.start);
    }

    void write_overhead(int64_t start) {
        out_ << "  {\n    \"ph\": \"X\", \"cat\": \"overhead\", \"name\": \"Buffer Flush\", \"pid\": -1, \"tid\": 0,\n"
                "    \"ts\": ";
        out_.time(start) << ", \"dur\": ";
        out_.time(112'638 + start % 90'000) << "\n  },\n";
        ++counts.of("overhead", 'X');
    }

    void write_work(const LaunchRecord& launch) {
        bool kernel = launch.work == Work::kernel, copy = launch.work == Work::copy;
        bool read = copy && launch.bytes == 4;
        if (kernel) out_ << kernel_heads_[program_.kernel_of[launch.kernel]];
        else if (copy) out_ << (read ? read_head_ : upload_head_);
        else out_ << set_head_;
        out_ << 0 << ", \"tid\": " << stream;
        write_times(launch.work_start, launch.work_dur) << "\"External id\": " << launch.external_id << ",      "
            << (kernel ? "\"queued\": 0, " : "") << "\"device\": 0, \"context\": 1,      \"stream\": " << stream
            << ", \"correlation\": " << launch.correlation << ",";
        if (kernel) out_ << program_.kernel_args[launch.kernel];
        else out_ << "      \"bytes\": " << launch.bytes << ", \"memory bandwidth (GB/s)\": "
                  << static_cast<double>(launch.bytes) / static_cast<double>(launch.work_dur);
        out_ << "\n    }\n  },\n";
        ++counts.of(kernel ? "kernel" : copy ? "gpu_memcpy" : "gpu_memset", 'X');
        write_flow("ac2g", launch.correlation, stream, launch.work_start, false, 0);
    }

    void write_span(const DeviceSpan& span, uint32_t step) {
        out_ << "  {\n    \"ph\": \"X\", \"cat\": \"gpu_user_annotation\", \"name\": \""
             << annotations[span.annotation];
        if (span.annotation == 0) out_ << step;
        out_ << "\", \"pid\": 0, \"tid\": " << stream;
        write_times(span.start, span.end - span.start)
            << "\"External id\": " << span.external_id << "\n    }\n  },\n";
        ++counts.of("gpu_user_annotation", 'X');
    }

    template <typename Value>
    void write_meta(const char* name, int process, int thread, const char* key, Value value) {
        out_ << "  {\n    \"name\": \"" << name << "\", \"ph\": \"M\", \"ts\": ";
        out_.time(Simulation::first_ns) << ", \"pid\": " << process << ", \"tid\": " << thread
            << ",\n    \"args\": {\n      \"" << key << "\": " << value << "\n    }\n  },\n";
        ++counts.of("", 'M');
    }

    void write_all_meta() {
        write_meta("process_name", process_id, 0, "name", "\"python3\"");
        write_meta("process_labels", process_id, 0, "labels", "\"CPU\"");
        write_meta("process_sort_index", process_id, 0, "sort_index", process_id);
        for (int device = 0; device < 16; ++device) {
            write_meta("process_name", device, 0, "name", "\"python3\"");
            std::string label = "\"GPU " + std::to_string(device) + "\"";
            write_meta("process_labels", device, 0, "labels", label.c_str());
            write_meta("process_sort_index", device, 0, "sort_index", 5000000 + device);
        }
        write_meta("thread_name", 0, stream, "name", "\"stream 7 \"");
        write_meta("thread_sort_index", 0, stream, "sort_index", stream);
        static constexpr std::array labels{"python3", "pt_autograd_0", "python3", "python3", "python3"};
        for (size_t i = 0; i < thread_ids.size(); ++i) {
            std::string name = "\"thread " + std::to_string(thread_ids[i]) + " (" + labels[i] + ")\"";
            write_meta("thread_name", process_id, thread_ids[i], "name", name.c_str());
            write_meta("thread_sort_index", process_id, thread_ids[i], "sort_index", thread_ids[i]);
        }
    }

    void footer(bool base_last) {
        write_all_meta();
        int64_t start = Simulation::first_ns - 234'303;
        out_ << "  {\n    \"ph\": \"X\", \"cat\": \"Trace\", \"ts\": ";
        out_.time(start) << ", \"dur\": ";
        out_.time(end_ - start) << ",\n    \"pid\": \"Spans\", \"tid\": \"PyTorch Profiler\",\n"
            "    \"name\": \"PyTorch Profiler (0)\",\n    \"args\": {\n      \"Op count\": 0\n    }\n  },\n"
            "  {\n    \"name\": \"process_sort_index\", \"ph\": \"M\", \"ts\": ";
        out_.time(start) << ",\n    \"pid\": \"Spans\", \"tid\": 0,\n    \"args\": {\n      \"sort_index\": 536870912\n"
            "    }\n  },\n  {\n    \"name\": \"Iteration Start: PyTorch Profiler\", \"ph\": \"i\", \"s\": \"g\",\n"
            "    \"pid\": \"Traces\", \"tid\": \"Trace PyTorch Profiler\", \"ts\": ";
        out_.time(start) << "\n  },\n  {\n    \"name\": \"Record Window End\", \"ph\": \"i\", \"s\": \"g\",\n"
            "    \"pid\": \"\", \"tid\": \"\", \"ts\": ";
        out_.time(end_ + 150'000'000) << "\n  }\n  ],\n  \"traceName\": \"trace.json\"";
        if (base_last) out_ << ",\n  \"displayTimeUnit\": \"ms\",\n  \"baseTimeNanoseconds\": 1790857026000000000";
        out_ << "\n}";
        ++counts.of("Trace", 'X');
        ++counts.of("", 'M');
        counts.of("", 'i') += 2;
        counts.of("cpu_op", 'X') = op_count_;
        counts.of("python_function", 'X') = frame_count_;
        for (bool starts : {false, true}) {
            counts.of("fwdbwd", starts ? 's' : 'f') = flows_[0][starts];
            counts.of("ac2g", starts ? 's' : 'f') = flows_[1][starts];
        }
    }

    const Program& program_;
    uint64_t seed_;
    uint32_t ops_per_step_, steps_;
    Output out_;
    int64_t end_ = 0;
    uint64_t event_index_ = 0, frame_count_ = 0, op_count_ = 0, launch_count_ = 0;
    uint64_t flows_[2][2] = {};
    std::vector<std::string> frame_heads_, op_heads_, kernel_heads_, call_heads_;
    std::string read_head_ = heading("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)");
    std::string upload_head_ = heading("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)");
    std::string set_head_ = heading("gpu_memset", "Memset (Device)");
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    double bytes = strtod(argv[1], nullptr);
    uint64_t seed = strtoull(argv[2], nullptr, 10);
    bool base_last = argv[3][0] == '1';
    Program program(seed);
    constexpr double bytes_per_op = 5600;  // of the whole mix
    // Long steps, as in a real training loop, but never fewer than four.
    auto ops_per_step = static_cast<uint32_t>(std::clamp(bytes / bytes_per_op / 4, 40.0, 5900.0));
    Writer four(program, seed, ops_per_step, 4, true), eight(program, seed, ops_per_step, 8, true);
    double start = static_cast<double>(four.write_all(base_last));
    double step = (static_cast<double>(eight.write_all(base_last)) - start) / 4;
    auto steps = static_cast<uint32_t>(std::max(1.0, (bytes - start) / step + 4.5));
    Writer writer(program, seed, ops_per_step, steps, false);
    size_t written = writer.write_all(base_last);
    std::cerr << "bytes\t-\t" << written << "\nsteps\t-\t" << steps << "\n";
    for (const auto& [key, events] : writer.counts.events)
        std::cerr << key.first << "\t" << key.second << "\t" << events << "\n";
}
