package rlcore

import (
	"slices"
	"strings"
	"testing"
)

func TestPoliciesAreListedByRank(t *testing.T) {
	was := policies
	t.Cleanup(func() { policies = was })
	made := func(PolicySetup) (Policy, error) { return nil, nil }
	RegisterPolicy(PolicySpec{Name: "late", Rank: 2, Live: true, New: made})
	RegisterPolicy(PolicySpec{Name: "early", Rank: 1, Live: true, Contender: true, New: made})
	RegisterPolicy(PolicySpec{Name: "between", Rank: 1, Contender: true})
	if got := PolicyNames(LivePolicies()); !slices.Equal(got, []string{"early", "late"}) {
		t.Errorf("live: %v", got)
	}
	if got := PolicyNames(Contenders()); !slices.Equal(got, []string{"between", "early"}) {
		t.Errorf("contenders: %v", got)
	}
}

func TestPolicyThatOnlyTrainingMakesIsNotLive(t *testing.T) {
	was := policies
	t.Cleanup(func() { policies = was })
	RegisterPolicy(PolicySpec{Name: "lab", Contender: true})
	if _, err := NewPolicy("lab", PolicySetup{}); err == nil || !strings.Contains(err.Error(), `there is no policy "lab"`) {
		t.Errorf("error %v", err)
	}
}

func TestPolicyIsRegisteredOnce(t *testing.T) {
	was := policies
	t.Cleanup(func() { policies = was })
	RegisterPolicy(PolicySpec{Name: "twice"})
	defer func() {
		if recover() == nil {
			t.Error("the second one of a name was taken")
		}
	}()
	RegisterPolicy(PolicySpec{Name: "twice"})
}
