#include "call_tree.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace stepscope {

// ---- stretches

void Stretches::set(const int64_t* starts, const int64_t* ends, size_t count) {
  pieces_.clear();
  if (!add_apart(starts, ends, count)) lay_on_one_another(starts, ends, count);
  rewind();
}

// Mostly they come in order and none lies on another.
bool Stretches::add_apart(const int64_t* starts, const int64_t* ends, size_t count) {
  int64_t last = kNull;
  for (size_t i = 0; i < count; ++i) {
    if (ends[i] <= starts[i]) continue;
    if (starts[i] < last) return false;
    pieces_.push_back({starts[i], ends[i], 1});
    last = ends[i];
  }
  return true;
}

void Stretches::lay_on_one_another(const int64_t* starts, const int64_t* ends, size_t count) {
  std::vector<std::pair<int64_t, int64_t>> bounds;  // when, and by how much the number of open stretches changes
  for (size_t i = 0; i < count; ++i) {
    if (ends[i] <= starts[i]) continue;
    bounds.emplace_back(starts[i], 1);
    bounds.emplace_back(ends[i], -1);
  }
  std::sort(bounds.begin(), bounds.end());
  pieces_.clear();
  int64_t open = 0;
  for (size_t i = 0; i < bounds.size(); ++i) {
    open += bounds[i].second;
    if (open && bounds[i + 1].first > bounds[i].first) pieces_.push_back({bounds[i].first, bounds[i + 1].first, open});
  }
}

void Stretches::clip(const Stretches& others) {
  std::vector<Piece> clipped;
  size_t first = 0;
  for (const Piece& piece : pieces_) {
    while (first < others.pieces_.size() && others.pieces_[first].end <= piece.start) ++first;
    for (size_t i = first; i < others.pieces_.size() && others.pieces_[i].start < piece.end; ++i)
      clipped.push_back({std::max(piece.start, others.pieces_[i].start), std::min(piece.end, others.pieces_[i].end), piece.times});
  }
  pieces_ = std::move(clipped);
  rewind();
}

int64_t Stretches::take(int64_t to, std::vector<Piece>* found) {
  int64_t sum = 0;
  while (at_ < pieces_.size() && pieces_[at_].start < to) {
    const Piece& piece = pieces_[at_];
    const int64_t from = std::max(piece.start, cursor_), until = std::min(piece.end, to);
    if (until > from) {
      sum += (until - from) * piece.times;
      if (found) found->push_back({from, until, piece.times});
    }
    if (piece.end > to) break;
    ++at_;
  }
  cursor_ = std::max(cursor_, to);
  return sum;
}

// ---- the tree

CallTree::CallTree(size_t limit) : limit_(limit), slots_(1 << 12, -1) {}

void CallTree::begin_thread(int32_t thread, const int64_t* late_starts, const int64_t* late_ends, size_t late) {
  steps_.rewind();
  late_.set(late_starts, late_ends, late);
  late_.clip(steps_);
  unclaimed_.clear();
  root_ = static_cast<int64_t>(nodes_.size());
  nodes_.push_back({kNull, kNull, 0, thread});
  last_child_.push_back(-1);
}

void CallTree::finish_thread() { unclaim(std::numeric_limits<int64_t>::max()); }

const std::vector<Stretches::Piece>& CallTree::hand_over() {
  nodes_.at(static_cast<size_t>(root_)).late = 0;
  return unclaimed_;
}

size_t CallTree::slot(int64_t parent, int64_t label) const {
  uint64_t hash = static_cast<uint64_t>(parent) * 0x9e3779b97f4a7c15u ^ static_cast<uint64_t>(label) * 0xc2b2ae3d27d4eb4fu;
  hash ^= hash >> 29;
  hash *= 0xbf58476d1ce4e5b9u;
  size_t at = static_cast<size_t>(hash >> 20) & (slots_.size() - 1);
  while (slots_[at] >= 0) {
    const Node& node = nodes_[static_cast<size_t>(slots_[at])];
    if (node.parent == parent && node.label == label) break;
    at = (at + 1) & (slots_.size() - 1);
  }
  return at;
}

void CallTree::grow() {
  slots_.assign(slots_.size() * 2, -1);
  for (size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].parent != kNull) slots_[slot(nodes_[i].parent, nodes_[i].label)] = static_cast<int32_t>(i);
}

int64_t CallTree::child(int64_t parent, int64_t label) {
  const int32_t last = last_child_[static_cast<size_t>(parent)];
  if (last >= 0 && nodes_[static_cast<size_t>(last)].label == label) return last;
  size_t at = slot(parent, label);
  if (slots_[at] < 0) {
    if (nodes_.size() >= limit_) return parent;
    if (nodes_.size() * 2 >= slots_.size()) {
      grow();
      at = slot(parent, label);
    }
    slots_[at] = static_cast<int32_t>(nodes_.size());
    const Node& around = nodes_[static_cast<size_t>(parent)];
    nodes_.push_back({parent, label, around.depth + 1, around.thread});
    last_child_.push_back(-1);
  }
  last_child_[static_cast<size_t>(parent)] = slots_[at];
  return slots_[at];
}

void CallTree::enter(int64_t node, int64_t dur) {
  Node& n = nodes_[static_cast<size_t>(node)];
  ++n.calls;
  if (dur != kNull) n.total = saturating_add(n.total, dur);
}

CallTree::Charged CallTree::charge(int64_t node, int64_t from, int64_t to) {
  unclaim(from);
  if (node == root_) {
    unclaim(to);
    return {};
  }
  Node& n = nodes_[static_cast<size_t>(node)];
  const Charged charged{steps_.take(to), late_.take(to)};
  n.self += to - from, n.in_steps += charged.in_steps, n.late += charged.late;
  return charged;
}

// Time with nothing open belongs to the thread as such.
void CallTree::unclaim(int64_t until) {
  Node& root = nodes_[static_cast<size_t>(root_)];
  root.in_steps += steps_.take(until);
  root.late += late_.take(until, &unclaimed_);
}

namespace {

// The place of a node's parent, or -1; parents come first, or the tree is none.
int64_t parent_of(const int64_t* parent, size_t node) {
  if (parent[node] == kNull) return -1;
  if (parent[node] < 0 || static_cast<size_t>(parent[node]) >= node) throw std::invalid_argument("a parent that comes after its child");
  return parent[node];
}

}  // namespace

std::vector<int64_t> inherited(const int64_t* parent, const int64_t* own, size_t nodes) {
  std::vector<int64_t> found(own, own + nodes);
  for (size_t i = 0; i < nodes; ++i)
    if (const int64_t around = parent_of(parent, i); found[i] == kNull && around >= 0) found[i] = found[static_cast<size_t>(around)];
  return found;
}

std::vector<int64_t> recurring(const int64_t* parent, const int64_t* label, size_t nodes) {
  std::vector<int64_t> found(nodes, 0);
  for (size_t i = 0; i < nodes; ++i)
    for (int64_t around = parent_of(parent, i); around >= 0 && !found[i]; around = parent_of(parent, static_cast<size_t>(around)))
      found[i] = label[around] == label[i];
  return found;
}

std::vector<int64_t> subtree_sums(const int64_t* parent, const int64_t* own, size_t nodes) {
  std::vector<int64_t> sums(own, own + nodes);
  for (size_t i = nodes; i-- > 0;) {
    if (sums[i] == kNull) sums[i] = 0;
    if (const int64_t around = parent_of(parent, i); around >= 0) {
      int64_t& sum = sums[static_cast<size_t>(around)];
      sum = saturating_add(sum == kNull ? 0 : sum, sums[i]);
    }
  }
  return sums;
}

}  // namespace stepscope
