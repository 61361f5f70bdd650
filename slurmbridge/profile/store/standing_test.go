package store

import (
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/appid"
)

// What a daemon has learned of applications the next one reads: their standings, but for what came of co-runs long ago,
// and their slowdowns. The standing shares its row with the application's family.
func TestWhatIsRecalled(t *testing.T) {
	s := opened(t, filepath.Join(t.TempDir(), "db"))
	ctx, now := t.Context(), time.Unix(1e9, 0).UTC()
	profile := func(name string) *rlcore.Profile {
		return &rlcore.Profile{
			App: name, Owner: "ann", DurationS: 60, PeriodS: 60, Series: []rlcore.Use{{GPU: 0.7, Core: 0.7, MemMiB: 100}},
		}
	}
	pair := []*rlcore.Profile{profile("md"), profile("other")}
	first := interference.New(&contention.MPS)
	var standing interference.Standing
	for i := range 3 {
		l, ok := first.Lesson(&rlcore.TitanXp, pair, 2+0.1*float64(i), 1.2, 1)
		must.Equal(t, ok, true, "the co-run teaches")
		standing.Accuse(rlcore.Identity{App: []string{"old", "new", "newer"}[i]}, now.AddDate(0, 0, i))
		must.OK(t, s.Stand(ctx, s.DB(), pair[0].Identity(), now.AddDate(0, 0, i), &standing, []interference.Lesson{l}))
		first.Take(&l)
	}
	must.OK(t, s.SetFamily(ctx, "ann", appid.App{Key: "md", Family: "mds"}))
	second := interference.New(&contention.MPS)
	must.OK(t, s.Recall(ctx, second, now.AddDate(0, 0, 1)))
	standing.Forget(now.AddDate(0, 0, 1))
	must.Equal(t, second.Standing(pair[0].Identity()), standing, "the standing")
	must.Equal(t, len(standing.Others), 2, "applications that it accuses")
	want, got := make([]rlcore.Prediction, 2), make([]rlcore.Prediction, 2)
	first.Predict(want, &rlcore.TitanXp, pair)
	second.Predict(got, &rlcore.TitanXp, pair)
	if math.Abs(got[0].Slowdown-want[0].Slowdown)+math.Abs(got[0].SD-want[0].SD) > 1e-9 {
		t.Errorf("predicted %+v, want %+v", got[0], want[0])
	}
	must.Equal(t, must.Get(s.Family(ctx, "ann", "md"))(t).Family, "mds", "the family")
	must.OK(t, s.Tidy(ctx, s.now().Add(time.Hour)))
	third := interference.New(&contention.MPS)
	must.OK(t, s.Recall(ctx, third, time.Unix(0, 0)))
	third.Predict(got, &rlcore.TitanXp, pair)
	if len(third.Standing(pair[0].Identity()).Others) > 0 || got[0].Slowdown == want[0].Slowdown {
		t.Error("what nobody has seen for long is known")
	}
}
