// Sequences of packets of a Perfetto trace: what their numbers mean, and what was learned while they mean it.
#include "pftrace.hpp"

namespace stepscope {

namespace {

constexpr size_t kMostLearnedBytes = 24 << 20;

}  // namespace

const Text* Numbered::find_far(uint64_t iid) const {
  const auto it = sparse_.find(iid);
  return it == sparse_.end() ? nullptr : &it->second;
}

// Writers count from 1 on. A number that is far from those before it gets no room for all that might come between.
Text& Numbered::at(uint64_t iid) {
  constexpr uint64_t kNear = 16, kMostDense = 1 << 16;
  const size_t before = dense_.size();
  if (iid >= before && (iid >= kMostDense || iid > 2 * texts_ + kNear)) {
    const auto [it, fresh] = sparse_.try_emplace(iid);
    texts_ += fresh;
    return it->second;
  }
  if (iid >= before) dense_.resize(iid + 1);
  for (uint64_t i = before; i <= iid && !sparse_.empty(); ++i)
    if (const auto it = sparse_.find(i); it != sparse_.end()) dense_[i] = std::move(it->second), sparse_.erase(it);
  texts_ += dense_[iid].json.empty();
  return dense_[iid];
}

void Sequence::forget() {
  for (Numbered* one : {&names, &categories, &keys, &strings, &kernels, &arguments}) one->clear();
  stages = decltype(stages)();
  counters = decltype(counters)();
  default_track = 0;
  default_clock = 0;
  interned_bytes = 0;
}

// Counts what is about to be learned of a sequence. If it is too much, the trace has gone on to other slices.
void PftraceReader::make_room(size_t bytes, Sequence& sequence) {
  if (learned_bytes_ + bytes > kMostLearnedBytes) {
    for (auto& [number, one] : sequences_) one.unlearn(++learnings_);
    learned_bytes_ = 0;
  }
  sequence.learned_bytes += bytes;
  learned_bytes_ += bytes;
}

// From here on numbers may mean other texts: what was learned with them holds no more.
void PftraceReader::begin_epoch(Sequence& sequence) {
  sequence.epoch = ++epochs_;
  learned_bytes_ -= sequence.learned_bytes;
  sequence.unlearn(++learnings_);
}

// Takes as long as it took to learn it, not longer.
void Sequence::unlearn(uint64_t again) {
  for (const auto& one : patterns) names.at(one->name_iid).patterns = nullptr;
  patterns = decltype(patterns)(), layouts = decltype(layouts)();  // their room goes, too: there may be many sequences
  last_pattern = nullptr;
  learning = again;
  last_layout = learned_bytes = 0;
}

void Sequence::met(Pattern* pattern) {
  if (last_pattern) last_pattern->follower = pattern;
  last_pattern = pattern;
}

}  // namespace stepscope
