package policy

import (
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

func TestRegistry(t *testing.T) {
	was := policies
	t.Cleanup(func() { policies = was })
	made := func(Setup) (rlcore.Policy, error) { return nil, nil }
	Register(Spec{Name: "late", Rank: 2, Live: true, New: made})
	Register(Spec{Name: "early", Rank: 1, Live: true, Contender: true, New: made})
	Register(Spec{Name: "trained", Rank: 1, Contender: true})
	must.Equal(t, Names(Live()), []string{"early", "late"}, "live, by rank")
	must.Equal(t, Names(Contenders()), []string{"early", "trained"}, "contenders")
	must.Fail(t, must.Err(New("trained", Setup{})), `there is no policy "trained"`, "one that only training makes")
	defer func() {
		if recover() == nil {
			t.Error("the second one of a name was taken")
		}
	}()
	Register(Spec{Name: "late"})
}
