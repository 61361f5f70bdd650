package site

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

// notes is an Observer that writes down what it is told.
type notes []string

func (n *notes) Observe(_ *rlcore.GPUSpec, _ []*rlcore.Profile, _, _, _ float64) {
	*n = append(*n, "lesson")
}
func (n *notes) Doubt(rlcore.Identity, []rlcore.Identity)    { *n = append(*n, "doubt") }
func (n *notes) Reassure(rlcore.Identity, []rlcore.Identity) { *n = append(*n, "reassure") }

// A run of an application that takes 1000 s says more of sharing the better its length is known.
func TestWhatARunTeaches(t *testing.T) {
	for name, c := range map[string]struct {
		sd, ranS, besideS float64
		want              notes
	}{
		"its length is known":                    {0, 1500, 1500, notes{"lesson", "reassure"}},
		"it broke its contract":                  {0, 2500, 2500, notes{"doubt", "lesson"}},
		"its length isn't known":                 {500, 1500, 1500, nil},
		"it may have been a long run":            {500, 2500, 2500, nil},
		"it was slower than a long run would be": {500, 6000, 6000, notes{"doubt"}},
		"it was accompanied for a part":          {0, 1500, 700, notes{"lesson", "reassure"}},
		"it was hardly accompanied":              {0, 1500, 100, nil},
	} {
		app := func(name string) *rlcore.Profile {
			return &rlcore.Profile{App: name, DurationS: 1000, DurationSD: c.sd, PeriodS: 1000, Series: []rlcore.Use{{GPU: .5}}}
		}
		var got notes
		s := Site{Observer: &got, MaxSlowdown: 2, Foretell: true}
		j := &rlcore.Job{ID: "1", User: "ann", Profile: app("a")}
		changed := s.Ended(&Run{
			Job: j, Known: app("a"), Spec: &rlcore.TitanXp, RanS: c.ranS, BelievedS: 1000,
			Others: []interference.Overlap{{Profile: app("b"), ToS: c.besideS}},
		})
		if diff := cmp.Diff(c.want, got); diff != "" || !changed {
			t.Errorf("%s: lengths changed: %v; %s", name, changed, diff)
		}
	}
}

// Earlier runs that a profile holds foretell a job before any run has ended since.
func TestEarlierRunsForetell(t *testing.T) {
	known := &rlcore.Profile{
		App: "a", Runs: 2, DurationS: 1000, DurationSD: 500, PeriodS: 1000, Series: []rlcore.Use{{GPU: .5}},
		Past: []rlcore.Past{{SoloS: 100, User: "ann"}, {SoloS: 1900, User: "bob"}},
	}
	j := &rlcore.Job{ID: "1", User: "ann"}
	s := Site{Foretell: true}
	if got, want := s.Expect(j, known).DurationS, known.Foretold("ann", 0).DurationS; got != want || got > 900 {
		t.Errorf("ann's job is expected to take %v s, want %v", got, want)
	}
	if got := new(Site).Expect(j, known); got != known {
		t.Errorf("a site that foretells nothing expects %+v", got)
	}
}
