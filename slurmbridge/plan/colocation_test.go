package plan

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// slow predicts that sharing makes each job take longer by the given factor.
type slow float64

func (s slow) Predict(dst []rlcore.Prediction, _ *rlcore.GPUSpec, _ []*rlcore.Profile) {
	for i := range dst {
		dst[i] = rlcore.Prediction{Slowdown: float64(s)}
	}
}

// mayMeet reports whether the guard lets fresh members start on a node with two idle GPUs to which others are on their
// way.
func mayMeet(guard *rlcore.Guard, fresh, others []placement) bool {
	checks := mostChecks
	p := newView(withCards(snapshot()))
	ok, _ := p.meets(guard, &checks, p.nodes["n1"], fresh, others)
	return ok
}

// A job whose limit is fixed and one whose limit can be raised are of two kinds: what the guard says of the one says
// nothing of the other, in whatever order it is asked.
func TestAFixedLimitIsCheckedInEveryOrder(t *testing.T) {
	guard := rlcore.NewGuard(rlcore.Rules{Predictor: slow(1.5), ExtendLimit: true})
	profile := runs(3000, 100)
	onItsWay := func(id string, fixed bool, group int64) placement {
		own := rlcore.Job{ID: id, Profile: profile, LimitS: 3600, LimitFixed: fixed, MaxSlowdown: 2}
		return placement{Running: rlcore.Running{Shares: 50, Job: own}, group: group}
	}
	raised, fixed, fresh := onItsWay("raised", false, 1), onItsWay("fixed", true, 2), onItsWay("fresh", false, -1)
	must.Equal(t, mayMeet(guard, []placement{fresh}, []placement{raised}), true)
	must.Equal(t, mayMeet(guard, []placement{fresh}, []placement{fixed}), false)
	must.Equal(t, mayMeet(guard, []placement{fresh}, []placement{raised, fixed}), false)
	must.Equal(t, mayMeet(guard, []placement{fresh}, []placement{fixed, raised}), false)
}

// Whatever jobs are on their way, the order in which they are listed doesn't matter.
func TestMeetingsDoNotDependOnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		guard := rlcore.NewGuard(rlcore.Rules{Predictor: slow(1.5), ExtendLimit: true, MaxMembers: 3})
		var profiles []*rlcore.Profile
		for _, mib := range []float64{100, 5000, 9000} {
			profiles = append(profiles, runs(3000, mib))
		}
		some := rapid.Custom(func(t *rapid.T) placement {
			b := rapid.Bool()
			x := rlcore.Running{Shares: rapid.SampledFrom([]int{30, 50}).Draw(t, "shares")}
			x.Profile = rapid.SampledFrom(profiles).Draw(t, "profile")
			x.User = rapid.SampledFrom([]string{"ann", "bob"}).Draw(t, "user")
			x.LimitS = rapid.SampledFrom([]float64{3600, 36000}).Draw(t, "limit")
			x.LimitFixed, x.NoShare = b.Draw(t, "fixed"), rapid.IntRange(0, 9).Draw(t, "alone") == 0
			x.MaxSlowdown = rapid.SampledFrom([]float64{1.4, 2}).Draw(t, "contract")
			return placement{Running: x, group: int64(rapid.IntRange(1, 3).Draw(t, "group"))}
		})
		fresh := rapid.SliceOfN(some, 1, 3).Draw(t, "fresh")
		others := rapid.SliceOfN(some, 0, 4).Draw(t, "others")
		for i := range fresh {
			fresh[i].group = -1
		}
		want := mayMeet(guard, fresh, others)
		back := slices.Clone(others)
		slices.Reverse(back)
		if got := mayMeet(guard, fresh, back); got != want {
			t.Fatalf("%v, and in the other order %v", want, got)
		}
	})
}
