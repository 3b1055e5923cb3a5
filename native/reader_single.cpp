// Events that another reader gives one by one.
#include "reader.hpp"

namespace stepscope {

namespace {

constexpr size_t kLookedAt = 128;  // bytes behind an event that the fast paths may look at

}  // namespace

int Reader::table_for(const std::string& phase, const std::string& category) const {
  Template t;
  t.has_phase = t.has_category = true;
  t.phase = phase, t.category = category;
  return table_of(t);
}

std::optional<Identity> Reader::read_one(std::string& text) {
  const size_t size = text.size();
  bytes += static_cast<int64_t>(size);
  alike_.reset();
  if (size > static_cast<size_t>(kMaxEvent)) {
    note("an event of over 16 MiB", static_cast<int64_t>(size), -1);
    return alike_;
  }
  text.append(kLookedAt, ' ');
  const char* p = piece_ = text.data();
  const char* end = p + text.size();
  piece_offset_ = 0;
  state_ = State::events, saw_events = true;
  if (spec_.templates) read_known_events(p, end);
  if (p < piece_ + size && read_event(p, end) != Scan::ok) note("an event that is no JSON", static_cast<int64_t>(size), -1);
  if (state_ == State::resync) note(lost_why_, static_cast<int64_t>(size), -1);
  state_ = State::done;
  return alike_;
}

}  // namespace stepscope
