#include "handover.hpp"

#include <algorithm>

namespace stepscope {

Role Handovers::role(int32_t thread, int32_t lead) const {
  if (thread == lead) return Role::lead;
  const auto found = roles_.find(thread);
  return found == roles_.end() || found->second == Role::lead ? Role::other : found->second;
}

int64_t Handovers::last_sign(int32_t thread, int64_t until, bool starts_too) const {
  const auto of_thread = graph_.busy().find(thread);
  if (of_thread == graph_.busy().end()) return kNull;
  const auto& spans = of_thread->second;
  auto at = std::upper_bound(spans.begin(), spans.end(), until, [](int64_t t, const Dependencies::Span& s) { return t < s.start; });
  if (at == spans.begin()) return kNull;
  --at;
  if (at->end <= until) return at->end;
  if (starts_too) return at->start;
  return at == spans.begin() ? kNull : (at - 1)->end;
}

Handover Handovers::in_pause(int32_t thread, int32_t lead, int64_t gap_start, int64_t gap_end) const {
  const Role own = role(thread, lead);
  Handover best;
  int64_t latest = kNull;
  const auto consider = [&](int32_t other, Role other_role) {
    if (other == thread || other < 0) return;
    const bool gives = other_role < own;
    const int64_t sign = last_sign(other, gap_end, gives);
    if (sign == kNull || sign <= gap_start || sign <= latest) return;
    const bool surely = std::max(own, other_role) == Role::engine && own != other_role;
    if (!surely && (gives ? gap_end : sign) - gap_start < thread_wait_) return;
    latest = sign;
    best = gives ? Handover{gap_end, gap_end, other, true} : Handover{sign, own == Role::lead ? sign : gap_end, other, false};
  };
  consider(lead, Role::lead);
  for (const auto& [other, other_role] : roles_)
    if (other != lead && other_role != Role::other) consider(other, other_role);
  return best;
}

}  // namespace stepscope
