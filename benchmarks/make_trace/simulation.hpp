// Runs the program step by step on one clock: the interpreter lock lets one thread run at a time, the
// device works beside it. Every run with the same seed gives the same records, so that each section of
// the file can be written by a run of its own and no more than one step is ever held in memory.
#pragma once
#include <algorithm>
#include <array>
#include <vector>

#include "program.hpp"

enum Thread : uint8_t { main_thread, autograd_thread, pin_thread, env_thread, log_thread, thread_count };

struct FrameRecord {
    int64_t start, dur;
    uint32_t id, parent, function;
    Thread thread;
};

struct OpRecord {
    int64_t start, dur;
    uint32_t node, external_id, sequence = 0, flow = 0;
    bool annotation = false;
};

struct MemoryRecord {
    int64_t start, bytes, total;
    uint64_t address;
};

enum class Work : uint8_t { none, kernel, copy, set, wait };

struct LaunchRecord {
    int64_t start, dur, work_start = 0, work_dur = 0;
    uint32_t call, correlation, external_id, kernel = 0, bytes = 0;
    Thread thread;
    Work work = Work::none;
    bool device_first = false;
};

struct DeviceSpan {
    uint32_t annotation, external_id;
    int64_t start, end;
};

struct RuntimeCall {
    const char* name;
    int cbid;
    Work work;
    double rate;  // calls per kernel launch, for those that come with one
};

inline constexpr std::array runtime_calls{
    RuntimeCall{"cudaLaunchKernel", 211, Work::kernel, 0},
    RuntimeCall{"cuLaunchKernel", 307, Work::kernel, 0},
    RuntimeCall{"cudaMemcpyAsync", 41, Work::copy, 0},
    RuntimeCall{"cudaStreamSynchronize", 131, Work::wait, 0},
    RuntimeCall{"cudaMemsetAsync", 51, Work::set, 0.1106},
    RuntimeCall{"cudaPeekAtLastError", 11, Work::none, 0.1189},
    RuntimeCall{"cudaDeviceGetAttribute", 200, Work::none, 0.0487},
    RuntimeCall{"cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 251, Work::none, 0.0267},
    RuntimeCall{"cudaOccupancyMaxActiveBlocksPerMultiprocessor", 148, Work::none, 0.0044},
    RuntimeCall{"cudaStreamIsCapturing", 317, Work::none, 0.0045},
    RuntimeCall{"cudaMemGetInfo", 18, Work::none, 0.0013},
    RuntimeCall{"cudaEventRecord", 135, Work::none, 0.0009},
    RuntimeCall{"cudaStreamWaitEvent", 147, Work::none, 0.0010},
};

inline constexpr uint32_t first_unowned_call = 9;  // from here on no op is named

inline constexpr std::array annotations{
    "ProfilerStep#", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "rollout",
    "Optimizer.zero_grad#AdamW.zero_grad", "Optimizer.step#AdamW.step"};

class Simulation {
  public:
    Simulation(const Program& program, uint64_t seed, uint32_t ops_per_step)
        : program_{program}, rng_{seed ^ 0xABCDEFull}, ops_per_step_{ops_per_step} {
        open_roots();
        mark_start_ = clock += 300'000;
    }

    static constexpr int64_t first_ns = 3'844'883'225'157'137;
    int64_t clock = first_ns;
    uint32_t step = 2;
    std::vector<FrameRecord> frames, roots;
    std::array<std::vector<OpRecord>, thread_count> ops;
    std::array<std::vector<MemoryRecord>, thread_count> memory;
    std::vector<LaunchRecord> launches;
    std::vector<DeviceSpan> device_spans;

    void run_step() {
        frames.clear();
        launches.clear();
        device_spans.clear();
        for (auto& list : ops) list.clear();
        for (auto& list : memory) list.clear();
        recorded_.clear();
        ++step;
        cursor_ = 0;
        uint32_t first_op = op_count_, mark = open_mark(0, mark_start_);
        load_batch();
        uint32_t rollout = open_mark(2, clock);
        while (op_count_ - first_op < ops_per_step_ * 5 / 10) run_unit();
        close_mark(rollout, 2);
        recording_ = true;
        while (op_count_ - first_op < ops_per_step_ * 65 / 100) run_unit();
        recording_ = false;
        run_backward();
        run_optimizer(first_op);
        fill_python();
        finish_step(mark);
    }

  private:
    int64_t jitter(uint32_t base_ns) {
        uint64_t draw = rng_.next();
        int64_t ns = base_ns * static_cast<int64_t>(48 + (draw & 63)) / 80 + 60;
        return (draw >> 56) == 0 ? ns * 9 : ns;
    }

    void open_roots() {
        for (Thread thread : {main_thread, pin_thread, env_thread, log_thread})
            for (uint32_t function : thread == main_thread ? program_.main_stack : program_.thread_stack) {
                clock += 2100 + rng_.below(900);
                roots.push_back({clock, 0, ++frame_count_, tops_[thread], function, thread});
                tops_[thread] = frame_count_;
            }
    }

    size_t open_frame(Thread thread, uint32_t function) {
        frames.push_back({clock, 0, ++frame_count_, tops_[thread], function, thread});
        tops_[thread] = frame_count_;
        clock += jitter(program_.functions[function].self_ns / 2);
        return frames.size() - 1;
    }

    void close_frame(Thread thread, size_t place) {
        clock += jitter(program_.functions[frames[place].function].self_ns / 4);
        frames[place].dur = clock - frames[place].start;
        tops_[thread] = frames[place].parent;
    }

    void call(Thread thread, uint32_t function) {
        size_t place = open_frame(thread, function);
        for (const Call& each : program_.functions[function].body) {
            if (each.chance != 255 && (rng_.next() & 255) > each.chance) continue;
            if (each.is_site) run_site(thread, each.target);
            else call(thread, each.target);
            clock += 90;
        }
        close_frame(thread, place);
    }

    uint32_t open_mark(uint32_t annotation, int64_t start) {
        ops[main_thread].push_back({start, 0, annotation, ++external_id_, 0, 0, true});
        first_launch_[annotation] = launches.size();
        return static_cast<uint32_t>(ops[main_thread].size() - 1);
    }

    void close_mark(uint32_t place, uint32_t annotation) {
        OpRecord& record = ops[main_thread][place];
        record.dur = clock - record.start;
        int64_t start = INT64_MAX, end = 0;
        for (size_t i = first_launch_[annotation]; i < launches.size(); ++i) {
            if (launches[i].work != Work::kernel) continue;
            start = std::min(start, launches[i].work_start);
            end = std::max(end, launches[i].work_start + launches[i].work_dur);
        }
        if (end > 0) device_spans.push_back({annotation, record.external_id, start - 1, end + 1});
    }

    void run_site(Thread thread, uint32_t place) {
        const Site& site = program_.sites[place];
        for (uint32_t node = site.begin; node < site.end; node = program_.nodes[node].end) run_node(thread, node);
        if (recording_ && site.backward >= 0) recorded_.push_back(static_cast<uint32_t>(site.backward));
    }

    void run_node(Thread thread, uint32_t index) {
        const Node& node = program_.nodes[index];
        auto& list = ops[thread];
        size_t place = list.size();
        list.push_back({clock, 0, index, ++external_id_});
        uint32_t external_id = external_id_;
        ++op_count_;
        if (node.sequenced && recording_) {
            list[place].sequence = ++sequence_;
            forward_places_.push_back(static_cast<uint32_t>(place));
        }
        if (thread == autograd_thread) {
            if (node.sequenced || node.autograd_root) list[place].sequence = backward_sequence_;
            if (node.sequenced) list[place].flow = flow_;
        }
        clock += jitter(1800);
        if (node.allocates) allocate(thread, node.bytes);
        for (uint32_t child = index + 1; child < node.end; child = program_.nodes[child].end) {
            run_node(thread, child);
            clock += jitter(700);
        }
        if (node.launches) launch_kernel(thread, node, external_id);
        clock += jitter(900);
        list[place].dur = clock - list[place].start;
    }

    void allocate(Thread thread, uint32_t bytes) {
        memory_due_ += 0.45;
        if (memory_due_ < 1) return;
        memory_due_ -= 1;
        allocated_ += bytes;
        memory[thread].push_back({clock, bytes, allocated_, 140'679'506'137'088ull + 512ull * rng_.below(1u << 20)});
        live_.push_back(memory[thread].back());
        clock += jitter(300);
        if (live_.size() < 64) return;
        MemoryRecord freed = live_[rng_.below(64)];
        std::erase_if(live_, [&](const MemoryRecord& each) { return each.start == freed.start; });
        allocated_ -= freed.bytes;
        memory[thread].push_back({clock, -freed.bytes, allocated_, freed.address});
        clock += jitter(200);
    }

    LaunchRecord& runtime_call(Thread thread, uint32_t kind, uint32_t base_ns, uint32_t external_id) {
        correlation_ += 1 + rng_.below(3);
        launches.push_back({clock, jitter(base_ns), 0, 0, kind, correlation_, external_id, 0, 0, thread,
                            runtime_calls[kind].work, rng_.below(3) == 0});
        clock += launches.back().dur;
        return launches.back();
    }

    void occupy_device(LaunchRecord& record, int64_t busy_ns) {
        record.work_start = std::max(device_free_ + 800, record.start + record.dur + jitter(2600));
        record.work_dur = busy_ns;
        device_free_ = record.work_start + busy_ns;
    }

    void launch_kernel(Thread thread, const Node& node, uint32_t external_id) {
        for (uint32_t kind = 4; kind < runtime_calls.size(); ++kind) {
            due_[kind] += runtime_calls[kind].rate;
            if (due_[kind] < 1) continue;
            due_[kind] -= 1;
            uint32_t owner = kind < first_unowned_call ? external_id : 0;
            LaunchRecord& record = runtime_call(thread, kind, kind == 4 ? 4200 : 600, owner);
            if (record.work == Work::set) {
                record.bytes = 4096u << rng_.below(8);
                occupy_device(record, jitter(900));
            }
            clock += 150;
        }
        driver_due_ += 0.0225;
        uint32_t kind = driver_due_ >= 1;
        driver_due_ -= kind;
        LaunchRecord& record = runtime_call(thread, kind, 4600, external_id);
        record.kernel = node.kernel;
        occupy_device(record, jitter(node.busy_ns));
        item_due_ += 0.0285;
        copy_due_ += 0.0180;
    }

    // A scalar read back: the host waits until the device is done.
    void read_back(Thread thread) {
        size_t first = ops[thread].size();
        run_site(thread, program_.item_site);
        OpRecord& outer = ops[thread][first];
        OpRecord& inner = ops[thread][first + 1];
        int64_t before = clock;
        clock = inner.start + 1500;
        uint32_t external_id = inner.external_id;
        LaunchRecord& copy = runtime_call(thread, 2, 9000, external_id);
        copy.bytes = 4;
        occupy_device(copy, jitter(1500));
        runtime_call(thread, 3, 2000, external_id);
        LaunchRecord& wait = launches.back();
        clock = std::max(clock, device_free_ + 1200);
        wait.dur = clock - wait.start;
        clock = std::max(clock, before) + jitter(800);
        inner.dur = clock - inner.start;
        clock += jitter(700);
        outer.dur = clock - outer.start;
        item_due_ -= 1;
    }

    void copy_to_device(Thread thread) {
        size_t first = ops[thread].size();
        run_site(thread, program_.copy_site);
        OpRecord& innermost = ops[thread][first + 3];
        clock = innermost.start + 1000;
        LaunchRecord& copy = runtime_call(thread, 2, 9000, innermost.external_id);
        copy.bytes = 65536u << rng_.below(6);
        occupy_device(copy, 2000 + copy.bytes / 40);
        clock += jitter(600);
        innermost.dur = clock - innermost.start;
        for (size_t place : {first + 1, first}) {
            clock += jitter(500);
            ops[thread][place].dur = clock - ops[thread][place].start;
        }
        copy_due_ -= 1;
    }

    // Runs library code until Python frames are as frequent as in the trace this one imitates. Most of it
    // is loops over agents and keys: the same call several times over.
    void fill_python() {
        while (frame_count_ < op_count_ * 16.78) {
            uint32_t next = cursor_++;
            if (next % 6 == 3) run_others();
            else repeat(main_thread, next * 7, 8 + next % 25);
            clock += 250;
        }
    }

    void repeat(Thread thread, uint32_t place, uint32_t times) {
        uint32_t function = program_.library[place % program_.library.size()];
        for (uint32_t i = 0; i < times; ++i) call(thread, function);
    }

    void run_others() {
        static constexpr std::array cycle{env_thread, env_thread, pin_thread, env_thread, log_thread};
        Thread thread = cycle[others_++ % cycle.size()];
        repeat(thread, others_ * 13, 4 + rng_.below(24));
        if (thread == pin_thread) run_site(thread, program_.pin_site);
    }

    // One piece of model code: a module or a few free tensor ops, then the Python around it.
    void run_unit() {
        uint32_t next = unit_++;
        if (next % 3 == 0) call(main_thread, program_.modules[next / 3 % program_.modules.size()]);
        else run_in_frame(program_.plain_sites[next * 5 % program_.plain_sites.size()], next);
        if (item_due_ >= 1) read_back(main_thread);
        if (copy_due_ >= 1) copy_to_device(main_thread);
        fill_python();
    }

    void run_in_frame(uint32_t site, uint32_t salt) {
        size_t place = open_frame(main_thread, salt * 3 % 1100);
        run_site(main_thread, site);
        close_frame(main_thread, place);
    }

    void load_batch() {
        uint32_t mark = open_mark(1, clock);
        size_t place = open_frame(main_thread, program_.loader);
        run_others();
        run_others();
        clock += 400'000 + rng_.below(200'000);
        close_frame(main_thread, place);
        close_mark(mark, 1);
    }

    void run_backward() {
        size_t outer = open_frame(main_thread, program_.engine);
        size_t inner = open_frame(main_thread, program_.run_backward);
        size_t count = std::min(recorded_.size(), forward_places_.size());
        for (size_t i = count; i-- > 0;) {
            ++flow_;
            OpRecord& forward = ops[main_thread][forward_places_[i]];
            forward.flow = flow_;
            backward_sequence_ = forward.sequence;
            run_site(autograd_thread, recorded_[i]);
            backward_sequence_ = 0;
            if (i % 3 == 0) run_site(autograd_thread, program_.grad_site);
            clock += jitter(2500);
            if (i % 40 == 39) run_others();
        }
        forward_places_.clear();
        close_frame(main_thread, inner);
        close_frame(main_thread, outer);
    }

    void run_optimizer(uint32_t first_op) {
        for (uint32_t annotation : {4u, 3u}) {
            size_t place = open_frame(main_thread, program_.optimizer);
            uint32_t mark = open_mark(annotation, clock);
            do {
                uint32_t next = unit_++;
                run_in_frame(program_.optimizer_sites[next % program_.optimizer_sites.size()], next);
            } while (annotation == 4 && op_count_ - first_op < ops_per_step_);
            close_mark(mark, annotation);
            close_frame(main_thread, place);
            fill_python();
        }
    }

    // The step mark closes, and the next one opens, in the middle of the profiler's own frame.
    void finish_step(uint32_t mark) {
        size_t place = open_frame(main_thread, program_.profiler_step);
        clock += jitter(9000);
        close_mark(mark, 0);
        clock += jitter(30000);
        mark_start_ = clock;
        clock += jitter(4000);
        close_frame(main_thread, place);
    }

    const Program& program_;
    Rng rng_;
    uint32_t ops_per_step_, frame_count_ = 0, op_count_ = 0, external_id_ = 0, sequence_ = 0, flow_ = 0;
    uint32_t correlation_ = 158'000, backward_sequence_ = 0, cursor_ = 0, unit_ = 0, others_ = 0;
    int64_t device_free_ = first_ns, allocated_ = 134'284'288, mark_start_ = 0;
    double memory_due_ = 0, driver_due_ = 0, item_due_ = 0, copy_due_ = 0;
    bool recording_ = false;
    std::array<double, runtime_calls.size()> due_{};
    std::array<uint32_t, thread_count> tops_{};
    std::array<size_t, annotations.size()> first_launch_{};
    std::vector<uint32_t> recorded_, forward_places_;
    std::vector<MemoryRecord> live_;
};
