package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

func TestPoliciesAreListedByRank(t *testing.T) {
	was := policies
	t.Cleanup(func() { policies = was })
	made := func(Setup) (rlcore.Policy, error) { return nil, nil }
	Register(Spec{Name: "late", Rank: 2, Live: true, New: made})
	Register(Spec{Name: "early", Rank: 1, Live: true, Contender: true, New: made})
	Register(Spec{Name: "between", Rank: 1, Contender: true})
	if got := Names(Live()); !slices.Equal(got, []string{"early", "late"}) {
		t.Errorf("live: %v", got)
	}
	if got := Names(Contenders()); !slices.Equal(got, []string{"between", "early"}) {
		t.Errorf("contenders: %v", got)
	}
}

func TestPolicyThatOnlyTrainingMakesIsNotLive(t *testing.T) {
	was := policies
	t.Cleanup(func() { policies = was })
	Register(Spec{Name: "lab", Contender: true})
	if _, err := New("lab", Setup{}); err == nil || !strings.Contains(err.Error(), `there is no policy "lab"`) {
		t.Errorf("error %v", err)
	}
}

func TestPolicyIsRegisteredOnce(t *testing.T) {
	was := policies
	t.Cleanup(func() { policies = was })
	Register(Spec{Name: "twice"})
	defer func() {
		if recover() == nil {
			t.Error("the second one of a name was taken")
		}
	}()
	Register(Spec{Name: "twice"})
}
