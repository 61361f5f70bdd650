package loop

import "github.com/slurmbridge/slurmbridge/rlcore"

// Use has the bridge decide by another policy from its next look on, with those to
// fall back on, in their order. It may be called at any time, from anywhere; of
// several calls between two looks the last counts. The policies belong to the bridge
// from then on.
func (b *Bridge) Use(policy rlcore.Policy, fallback ...rlcore.Policy) {
	b.policies.Store(&policies{policy, fallback})
	b.Wake()
}

// policies is what Use was given.
type policies struct {
	policy   rlcore.Policy
	fallback []rlcore.Policy
}

// modelOf says by which model a policy decides, "" = by none.
func modelOf(p rlcore.Policy) string {
	if m, ok := p.(interface{ Model() string }); ok {
		return m.Model()
	}
	return ""
}

// takeUp puts into place what Use was given since the last look. Decisions are made
// by the loop alone, so that none is half by one policy and half by another.
func (b *Bridge) takeUp() {
	if p := b.policies.Swap(nil); p != nil {
		b.Planner.Decider.Policy, b.Planner.Decider.Fallback = p.policy, p.fallback
	}
}
